//! Opening files of a model: regular ones only, and never what stands for one elsewhere.

use std::fs::{File, Metadata};
use std::io::{Error, ErrorKind};
use std::path::Path;

use super::ModelError;

/// How a pointer begins that git-lfs keeps in a repository in place of a large file.
const LFS_START: &[u8] = b"version https://git-lfs";

/// Longer than any such pointer.
const LFS_MOST_BYTES: usize = 1024;

/// Opens a regular file, or a link to one, and gives its length in bytes.
///
/// # Errors
/// When it cannot be opened, or is no regular file: opening a named pipe waits for a writer.
pub(crate) fn open_regular(path: &Path) -> Result<(File, u64), ModelError> {
    let io = |e| ModelError::io(path.display(), e);
    let metadata = std::fs::metadata(path).map_err(io)?;
    if !metadata.is_file() {
        let found = kind(&metadata);
        return Err(ModelError::invalid(
            path.display(),
            "file",
            found,
            "a regular file",
        ));
    }
    Ok((File::open(path).map_err(io)?, metadata.len()))
}

/// The content of a small file.
///
/// # Errors
/// As [`open_regular`], and for a git-lfs pointer.
pub(crate) fn read_file(path: &Path) -> Result<Vec<u8>, ModelError> {
    let (mut file, _) = open_regular(path)?;
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut file, &mut bytes)
        .map_err(|e| ModelError::io(path.display(), e))?;
    refuse_pointer(&path.display().to_string(), &bytes)?;
    Ok(bytes)
}

/// Reads a file that may be absent.
///
/// # Errors
/// On any other trouble than absence.
pub(crate) fn read_optional(path: &Path) -> Result<Option<Vec<u8>>, ModelError> {
    match read_file(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(ModelError::Io { source, .. }) if is_absence(&source) => Ok(None),
        Err(e) => Err(e),
    }
}

fn is_absence(error: &Error) -> bool {
    error.kind() == ErrorKind::NotFound
}

/// Refuses the content of a file that git-lfs has not fetched; `path` is for messages.
///
/// # Errors
/// Names the length of the file that the pointer stands for.
pub(crate) fn refuse_pointer(path: &str, bytes: &[u8]) -> Result<(), ModelError> {
    if bytes.len() > LFS_MOST_BYTES || !bytes.starts_with(LFS_START) {
        return Ok(());
    }
    let text = String::from_utf8_lossy(bytes);
    let size = text.lines().find_map(|line| line.strip_prefix("size "));
    let found = match size.and_then(|size| size.trim().parse::<u64>().ok()) {
        Some(size) => format!("a git-lfs pointer to {size} bytes"),
        None => "a git-lfs pointer".to_owned(),
    };
    let expected = "the file that it stands for, which `git lfs pull` fetches";
    Err(ModelError::invalid(path, "content", found, expected))
}

/// What a path leads to that is no regular file.
fn kind(metadata: &Metadata) -> &'static str {
    if metadata.is_dir() {
        return "a folder";
    }
    special_kind(metadata)
}

#[cfg(unix)]
fn special_kind(metadata: &Metadata) -> &'static str {
    use std::os::unix::fs::FileTypeExt;

    let kind = metadata.file_type();
    match () {
        () if kind.is_fifo() => "a pipe",
        () if kind.is_socket() => "a socket",
        () if kind.is_char_device() || kind.is_block_device() => "a device",
        () => "another kind of file",
    }
}

#[cfg(not(unix))]
fn special_kind(_: &Metadata) -> &'static str {
    "another kind of file"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::file_bytes::FileBytes;

    const POINTER: &str = "version https://git-lfs.github.com/spec/v1\n\
        oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n\
        size 4967215360\n";

    fn refusals(path: &Path) -> [String; 2] {
        let text = read_file(path).map(|_| ()).unwrap_err();
        let mapped = FileBytes::open(path).map(|_| ()).unwrap_err();
        [text, mapped].map(|error| error.to_string())
    }

    #[test]
    fn a_pointer_of_git_lfs_is_called_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        std::fs::write(&path, POINTER).unwrap();
        let expected = "model.safetensors: content: found a git-lfs pointer to 4967215360 bytes, \
            expected the file that it stands for, which `git lfs pull` fetches";
        for text in refusals(&path) {
            assert!(text.ends_with(expected), "{text}");
        }
        std::fs::write(&path, "version https://git-lfs").unwrap();
        for text in refusals(&path) {
            assert!(text.contains("found a git-lfs pointer, expected"), "{text}");
        }
        std::fs::write(&path, format!("{POINTER}{}", " ".repeat(LFS_MOST_BYTES))).unwrap();
        assert!(read_file(&path).is_ok());
    }

    #[test]
    fn absence_is_no_error_where_a_file_may_be_absent() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read_optional(&folder.path().join("none")).unwrap(), None);
        let error = read_optional(folder.path()).unwrap_err().to_string();
        let expected = ": file: found a folder, expected a regular file";
        assert!(error.ends_with(expected), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn what_is_no_regular_file_is_refused_before_it_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        let [pipe, link, file, to_file] =
            ["pipe", "link", "file", "to_file"].map(|name| folder.path().join(name));
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        std::os::unix::fs::symlink(&pipe, &link).unwrap();
        for (path, found) in [
            (pipe.as_path(), "a pipe"),
            (&link, "a pipe"),
            (Path::new("/dev/zero"), "a device"),
            (folder.path(), "a folder"),
        ] {
            let expected = format!(": file: found {found}, expected a regular file");
            for text in refusals(path) {
                assert!(text.ends_with(&expected), "{text}");
            }
        }
        std::fs::write(&file, "{}").unwrap();
        std::os::unix::fs::symlink(&file, &to_file).unwrap();
        assert_eq!(read_file(&to_file).unwrap(), b"{}");
        assert_eq!(FileBytes::open(&to_file).unwrap().bytes(), b"{}");
    }
}
