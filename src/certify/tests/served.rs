//! Evidence as servers leave it.

use crate::schema::*;

use super::super::*;

/// The same run on servers that report native caches, and the candidate's in the words `cache`.
pub fn serve(evidence: &mut Evidence, candidate: &str, cache: [&str; 2]) {
    let server = |name: &str, arms: &[&str], [k, v]: [&str; 2]| {
        serde_json::json!({
            "name": name, "arms": arms,
            "identity": {
                "url": "http://127.0.0.1:8080", "engine": "vllm", "model": "tiny",
                "cache": {"source": "/metrics", "k": k, "v": v},
            },
            "probe": {"thinking_switch": false, "reasoning": false, "prompt_cache_off": true},
        })
    };
    let servers = serde_json::json!({
        "settings": {"template": "server", "concurrency": 1, "seed": 0},
        "servers": [
            server("candidate", &[candidate], cache),
            server("native", &["native", "native-aa"], ["f16"; 2]),
        ],
    });
    evidence.manifest.worker.kind = HTTP_WORKER.to_owned();
    evidence.manifest.servers = Some(serde_json::from_value(servers).unwrap());
}
