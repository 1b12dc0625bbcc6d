//! Protocol, model and worker of a certificate against each other.

use crate::recipe::NativeDtype;
use crate::schema::{
    CERTIFICATE_SCHEMA, Certificate, ENGAGEMENT_SCHEMA, Geometry, IdentityFault, locked_otherwise,
    locked_protocols,
};

use super::super::Disagreement;
use super::digest;

pub(super) fn check(certificate: &Certificate) -> Vec<Disagreement> {
    let mut list = Vec::new();
    if certificate.schema != CERTIFICATE_SCHEMA {
        list.push(Disagreement::claim(
            "schema",
            certificate.schema.as_str(),
            CERTIFICATE_SCHEMA,
        ));
    }
    let schema = certificate.engagement.as_ref().map(|found| &found.schema);
    if let Some(found) = schema.filter(|schema| *schema != ENGAGEMENT_SCHEMA) {
        list.push(Disagreement::claim(
            "engagement.schema",
            found.as_str(),
            ENGAGEMENT_SCHEMA,
        ));
    }
    let geometry = &certificate.model.geometry;
    let formats = [NativeDtype::F16, NativeDtype::Bf16].map(NativeDtype::name);
    if *geometry != Geometry::unknown() && !formats.contains(&geometry.native_dtype.as_str()) {
        list.push(Disagreement::claim(
            "model.geometry.native_dtype",
            geometry.native_dtype.as_str(),
            formats.join(" or "),
        ));
    }
    list.extend(protocol(certificate));
    let worker = &certificate.worker;
    list.extend(worker.fault(certificate.servers.is_some()).map(claim));
    if let Ok(kind) = worker.known_kind() {
        list.extend(certificate.model.fault(kind).map(claim));
    }
    list
}

fn claim(fault: IdentityFault) -> Disagreement {
    Disagreement::claim(&fault.field, fault.found, fault.expected)
}

/// The name of a built-in protocol and its digest stand for each other.
fn protocol(certificate: &Certificate) -> Option<Disagreement> {
    let (name, sha256) = (&certificate.protocol.name, &certificate.protocol.sha256);
    if let Some(locked) = locked_otherwise(name, sha256) {
        let expected = format!("{locked} of the built-in protocol {name}");
        return Some(Disagreement::claim(
            "protocol.sha256",
            sha256.as_str(),
            expected,
        ));
    }
    let mut locked = locked_protocols();
    match locked.find(|(_, digest)| digest == sha256) {
        Some((own, _)) if own != name => {
            let expected = format!("{own}, the built-in protocol of that digest");
            Some(Disagreement::claim(
                "protocol.name",
                name.as_str(),
                expected,
            ))
        }
        _ => digest("protocol.sha256", sha256),
    }
}
