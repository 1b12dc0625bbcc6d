//! Whole runs on servers that behave.

use serde_json::json;

use crate::mock::{Mock, Shape, World};

#[test]
fn a_run_on_servers_ends_with_a_certificate() {
    for (shape, proof) in [
        (Shape::Vllm, "reported_and_observed"),
        (Shape::Llama, "observed_difference"),
        (Shape::Plain, "observed_difference"),
    ] {
        let (control, candidate) = (Mock::new(shape).start(), Mock::candidate(shape).start());
        let world = World::new();
        let assert = world.qualify(&candidate.url(), &control.url()).assert();
        let output = assert.get_output().clone();
        let text = String::from_utf8(output.stdout).unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{text}\n{errors}");
        let found = world.certificate();
        assert_eq!(found["objectives"]["preservation"]["verdict"], "pass");
        assert_eq!(found["worker"]["kind"], "http");
        assert_eq!(
            found["aa"],
            json!({"lost": 0, "gained": 0, "records": 113, "identical_bits": true})
        );
        assert_eq!(found["server_engagement"]["proof"], proof);
        let differences = &found["server_engagement"]["differences"]["native"];
        assert_eq!(
            differences,
            &json!({"records": 113, "differing": 33, "beyond_noise": 33, "noise_alone": 0})
        );
        assert!(
            found
                .get("engagement")
                .is_none_or(serde_json::Value::is_null)
        );
        assert!(text.contains("engagement"), "{text}");
        world
            .kvassay()
            .args(["verify", "run/certificates/SF.json", "--run", "run"])
            .assert()
            .code(0);
        world
            .kvassay()
            .args(["verify", "run/certificates/SF.json"])
            .assert()
            .code(0);
    }
}
