//! TLS: certificates are verified.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use predicates::str::contains;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::mock::World;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures/tls")
        .join(name)
}

/// Answers every connection with two models, under a certificate that nobody trusts.
fn start() -> String {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let certificate = CertificateDer::from_pem_file(fixture("certificate.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(fixture("key.pem")).unwrap();
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // Ends with the process, after as many connections as two runs can make.
    thread::spawn(move || {
        for stream in listener.incoming().flatten().take(64) {
            let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut stream = StreamOwned::new(connection, stream);
            let mut buffer = [0; 4096];
            if stream.read(&mut buffer).is_ok() {
                let body = r#"{"data":[{"id":"a"},{"id":"b"}]}"#;
                let length = body.len();
                let _ = write!(
                    stream,
                    "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}"
                );
                let _ = stream.flush();
            }
        }
    });
    format!("https://localhost:{port}/v1")
}

#[test]
fn a_certificate_that_nobody_trusts_is_refused() {
    let url = start();
    let world = World::new();
    world
        .qualify(&url, "http://127.0.0.1:9")
        .assert()
        .code(4)
        .stderr(contains("certificate"));
    // Where the system trusts it, the server is asked, and found to serve two models.
    world
        .qualify(&url, "http://127.0.0.1:9")
        .env("SSL_CERT_FILE", fixture("certificate.pem"))
        .assert()
        .code(2)
        .stderr(contains("found a, b, expected one model"));
}
