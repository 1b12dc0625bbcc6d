//! Writes the JSON Schemas of all stored documents to `docs/schemas/`.
//!
//! `cargo run --example schemas`

use std::path::Path;

use kvassay::schema::STORED_DOCUMENTS;

fn main() -> std::io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/schemas");
    std::fs::create_dir_all(&folder)?;
    for document in &STORED_DOCUMENTS {
        let path = folder.join(format!("{}.json", document.name));
        std::fs::write(path, document.generated())?;
    }
    Ok(())
}
