//! What the identities of a model and a worker say of each other.

use super::{
    FileDigest, HTTP_WORKER, IMPORT_WORKER, ModelIdentity, WorkerIdentity, is_sha256, sha256_hex,
};

/// Files of a model that hold no weights. Every other file that was read does.
pub const SMALL_MODEL_FILES: [&str; 6] = [
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
];

/// In place of a digest of weights that only a server or another harness has seen.
const UNKNOWN: &str = "unknown";

/// Who ran the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerKind {
    /// The built-in worker on the processor.
    Cpu,
    /// The built-in worker on a GPU.
    Cuda,
    /// Servers over HTTP.
    Http,
    /// Another harness.
    Import,
}

impl WorkerKind {
    /// Every kind.
    const ALL: [WorkerKind; 4] = [
        WorkerKind::Cpu,
        WorkerKind::Cuda,
        WorkerKind::Http,
        WorkerKind::Import,
    ];

    /// Name as in files.
    pub fn name(self) -> &'static str {
        match self {
            WorkerKind::Cpu => "cpu",
            WorkerKind::Cuda => "cuda",
            WorkerKind::Http => HTTP_WORKER,
            WorkerKind::Import => IMPORT_WORKER,
        }
    }

    /// Whether the tool ran the model itself.
    pub fn is_built_in(self) -> bool {
        matches!(self, WorkerKind::Cpu | WorkerKind::Cuda)
    }
}

/// A field that contradicts others, what it holds and what is expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityFault {
    /// Field, e.g. `model.weights_sha256`.
    pub field: String,
    /// What stands there.
    pub found: String,
    /// What is expected.
    pub expected: String,
}

impl IdentityFault {
    fn new(field: &str, found: impl Into<String>, expected: impl Into<String>) -> Self {
        IdentityFault {
            field: field.to_owned(),
            found: found.into(),
            expected: expected.into(),
        }
    }
}

impl WorkerIdentity {
    /// The kind, if this version has it.
    ///
    /// # Errors
    /// What was found and the kinds that there are.
    pub fn known_kind(&self) -> Result<WorkerKind, IdentityFault> {
        let mut kinds = WorkerKind::ALL.into_iter();
        kinds.find(|kind| kind.name() == self.kind).ok_or_else(|| {
            let found = format!("`{}`", self.kind);
            IdentityFault::new("worker.kind", found, "cpu, cuda, http or import")
        })
    }

    /// What contradicts the kind: one that there is not, or servers where there can be none.
    pub fn fault(&self, has_servers: bool) -> Option<IdentityFault> {
        match self.known_kind() {
            Err(fault) => Some(fault),
            Ok(WorkerKind::Http) if !has_servers => {
                let expected = "the servers of a run over http";
                Some(IdentityFault::new("servers", "none", expected))
            }
            Ok(WorkerKind::Cpu | WorkerKind::Cuda | WorkerKind::Import) if has_servers => {
                let expected = format!("none beside worker {}", self.kind);
                Some(IdentityFault::new("servers", "servers", expected))
            }
            Ok(_) => None,
        }
    }
}

/// SHA-256 over the sorted digests of weight files, one hexadecimal digest per line: the same for
/// the same files under other names.
pub fn weights_sha256<'a>(files: impl Iterator<Item = &'a FileDigest>) -> String {
    let mut digests: Vec<&str> = files.map(|file| file.sha256.as_str()).collect();
    digests.sort_unstable();
    let lines: String = digests.iter().flat_map(|digest| [*digest, "\n"]).collect();
    sha256_hex(lines.as_bytes())
}

impl ModelIdentity {
    /// Files that hold weights.
    fn weight_files(&self) -> impl Iterator<Item = &FileDigest> {
        let files = self.files.iter();
        files.filter(|file| !SMALL_MODEL_FILES.contains(&file.path.as_str()))
    }

    /// What contradicts the files: a digest of weights that does not follow from theirs. A built-in
    /// worker has read the weights; elsewhere they may be unknown.
    pub fn fault(&self, kind: WorkerKind) -> Option<IdentityFault> {
        let field = "model.weights_sha256";
        let found = self.weights_sha256.as_str();
        for (at, file) in self.files.iter().enumerate() {
            if !is_sha256(&file.sha256) {
                let field = format!("model.files[{at}].sha256");
                let found = format!("`{}`", file.sha256);
                let expected = "64 lower-case hexadecimal digits";
                return Some(IdentityFault::new(&field, found, expected));
            }
        }
        if !self.files.is_sorted_by(|a, b| a.path < b.path) {
            let found = "paths out of order or doubled";
            return Some(IdentityFault::new(
                "model.files",
                found,
                "each path once, in order",
            ));
        }
        let has_weights = self.weight_files().next().is_some();
        if found == UNKNOWN && !kind.is_built_in() && !has_weights {
            return None;
        }
        if !has_weights {
            let expected = format!("those of weights {found}");
            return Some(IdentityFault::new(
                "model.files",
                "no weight file",
                expected,
            ));
        }
        let expected = weights_sha256(self.weight_files());
        (found != expected).then(|| {
            let expected = format!("{expected}, which follows from model.files");
            IdentityFault::new(field, found, expected)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::Geometry;

    fn file(path: &str) -> FileDigest {
        FileDigest {
            path: path.to_owned(),
            sha256: sha256_hex(path.as_bytes()),
        }
    }

    fn model(files: &[&str]) -> ModelIdentity {
        let files: Vec<FileDigest> = files.iter().map(|path| file(path)).collect();
        let mut model = ModelIdentity {
            name: "m".to_owned(),
            family: "llama".to_owned(),
            files,
            weights_sha256: String::new(),
            tokenizer_sha256: String::new(),
            geometry: Geometry::unknown(),
            quantised: None,
            penalties: Vec::new(),
        };
        model.weights_sha256 = weights_sha256(model.weight_files());
        model
    }

    #[test]
    fn the_digest_of_the_weights_follows_from_their_files() {
        let folder = model(&["config.json", "model-1.safetensors", "model-2.safetensors"]);
        let lines = format!(
            "{}\n{}\n",
            folder.files[1]
                .sha256
                .clone()
                .min(folder.files[2].sha256.clone()),
            folder.files[1]
                .sha256
                .clone()
                .max(folder.files[2].sha256.clone())
        );
        assert_eq!(folder.weights_sha256, sha256_hex(lines.as_bytes()));
        for sound in [folder.clone(), model(&["any name.gguf"])] {
            assert_eq!(sound.fault(WorkerKind::Cpu), None);
            assert_eq!(sound.fault(WorkerKind::Http), None);
        }
        type Change = fn(&mut ModelIdentity);
        let changes: [(Change, &str); 6] = [
            (
                |m| m.weights_sha256 = "0".repeat(64),
                "model.weights_sha256",
            ),
            (
                |m| m.weights_sha256 = UNKNOWN.to_owned(),
                "model.weights_sha256",
            ),
            (
                |m| m.files[2].sha256 = "0".repeat(64),
                "model.weights_sha256",
            ),
            (|m| m.files[0].sha256.clear(), "model.files[0].sha256"),
            (|m| m.files.swap(0, 1), "model.files"),
            (|m| m.files.truncate(1), "model.files"),
        ];
        for (change, field) in changes {
            let mut changed = folder.clone();
            change(&mut changed);
            for kind in [WorkerKind::Cuda, WorkerKind::Http] {
                assert_eq!(changed.fault(kind).unwrap().field, field);
            }
        }
        let mut elsewhere = model(&["config.json"]);
        elsewhere.weights_sha256 = UNKNOWN.to_owned();
        assert_eq!(elsewhere.fault(WorkerKind::Import), None);
        let fault = elsewhere.fault(WorkerKind::Cpu).unwrap();
        assert_eq!(fault.found, "no weight file");
    }

    #[test]
    fn kinds_of_workers_are_known_and_fit_their_servers() {
        let fault = |kind: &str, has_servers| {
            let worker = WorkerIdentity {
                kind: kind.to_owned(),
                device: String::new(),
                arithmetic: String::new(),
            };
            worker.fault(has_servers).map(|fault| fault.field)
        };
        for kind in ["cpu", "cuda", "import"] {
            assert_eq!(fault(kind, false), None);
            assert_eq!(fault(kind, true).as_deref(), Some("servers"));
        }
        assert_eq!(fault("http", true), None);
        assert_eq!(fault("http", false).as_deref(), Some("servers"));
        for kind in ["", "CPU", "gpu"] {
            assert_eq!(fault(kind, false).as_deref(), Some("worker.kind"));
        }
    }
}
