use serde_json::json;

use super::*;

fn request(value: Value) -> Result<Request, RequestError> {
    Request::from_json(value.as_object().unwrap())
}

fn compute(value: Value) -> Map<String, Value> {
    request(value).unwrap().compute().unwrap()
}

#[test]
fn every_method_answers_with_its_fields() {
    let names = |value: Value| -> Vec<String> { compute(value).keys().cloned().collect() };
    let bound = json!({"method":"clopper_pearson_upper","k":6,"n":1319,"alpha":0.05});
    assert_eq!(names(bound), ["value"]);
    for method in ["tango_lower", "tango_upper"] {
        let bound = json!({"method":method,"lost":6,"gained":3,"n":1319,"alpha":0.05});
        assert_eq!(names(bound), ["value"]);
    }
    let interval = json!({"method":"tango_interval","lost":6,"gained":3,"n":9,"confidence":0.9});
    assert_eq!(names(interval), ["lower", "upper"]);
    let mcnemar = json!({"method":"mcnemar_exact","lost":6,"gained":3});
    assert_eq!(names(mcnemar), ["p", "log10_p"]);
    assert_eq!(
        names(json!({"method":"sign_test","positive":10,"negative":0})),
        ["p_two_sided", "p_greater", "log10_p_two_sided"]
    );
    let holm = json!({"method":"holm","p":[0.01,null,0.03]});
    assert_eq!(
        Value::Object(compute(holm)),
        json!({"adjusted":[0.03,null,0.06]})
    );
    let bootstrap = json!({"method":"bootstrap_ratio_upper","native":[1,2],"candidate":[1,2.5],
        "alpha":0.05,"resamples":1000,"seed":1});
    assert_eq!(names(bootstrap), ["value", "monte_carlo_se"]);
}

#[test]
fn every_listed_method_is_known() {
    for method in METHODS {
        let error = request(json!({"method":method})).unwrap_err();
        assert!(
            matches!(error, RequestError::Missing { .. }),
            "{method}: {error}"
        );
    }
}

#[test]
fn wrong_fields_are_named() {
    for (value, expected) in [
        (json!({}), "missing `method`, expected the name of a method"),
        (
            json!({"method":7}),
            "`method` is 7, expected the name of a method",
        ),
        (
            json!({"method":"mcnemar_exact","lost":1}),
            "missing `gained`, expected a whole number of at least 0",
        ),
        (
            json!({"method":"mcnemar_exact","lost":-1,"gained":1}),
            "`lost` is -1, expected a whole number of at least 0",
        ),
        (
            json!({"method":"mcnemar_exact","lost":"1","gained":1}),
            "`lost` is \"1\", expected a whole number of at least 0",
        ),
        (
            json!({"method":"mcnemar_exact","lost":1.5,"gained":1}),
            "`lost` is 1.5, expected a whole number of at least 0",
        ),
        (
            json!({"method":"holm","p":0.5}),
            "`p` is 0.5, expected a list of numbers",
        ),
        (
            json!({"method":"holm","p":[0.5,"x"]}),
            "`p[1]` is \"x\", expected a number",
        ),
    ] {
        assert_eq!(request(value).unwrap_err().to_string(), expected);
    }
    let unknown = request(json!({"method":"wald"})).unwrap_err().to_string();
    assert!(unknown.starts_with("unknown method `wald`, expected one of clopper_pearson_upper,"));
    // A missing value has a reading among p-values only.
    let bootstrap = json!({"method":"bootstrap_ratio_upper","native":[1,null],"candidate":[1,2],
        "alpha":0.05,"resamples":1000,"seed":1});
    let error = request(bootstrap).unwrap_err().to_string();
    assert_eq!(error, "`native[1]` is null, expected a number");
}

#[test]
fn whole_numbers_may_be_written_with_a_fraction_of_zero() {
    let plain = request(json!({"method":"mcnemar_exact","lost":6,"gained":3}));
    assert_eq!(
        request(json!({"method":"mcnemar_exact","lost":6.0,"gained":3.0})),
        plain
    );
    assert!(request(json!({"method":"mcnemar_exact","lost":1e300,"gained":3})).is_err());
}

#[test]
fn counts_without_end_are_refused() {
    let huge = json!({"method":"sign_test","positive":u64::MAX,"negative":u64::MAX});
    assert!(request(huge).unwrap().compute().is_err());
}

#[test]
fn long_values_are_shortened_in_messages() {
    let error = request(json!({"method":"é".repeat(500)}))
        .unwrap_err()
        .to_string();
    assert!(error.chars().count() < 300, "{error}");
}
