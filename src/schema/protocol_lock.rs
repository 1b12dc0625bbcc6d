//! The lock: names and digests of the protocols that are built in, which stand for good.

/// One line per protocol: name and SHA-256 of its canonical JSON.
const LOCK: &str = include_str!("../../protocols/protocols.lock");

/// Every locked protocol: name and digest, in the order of the lock file.
pub fn locked_protocols() -> impl Iterator<Item = (&'static str, &'static str)> {
    entries(LOCK)
}

/// The digest that is locked under this name.
pub fn locked_digest(name: &str) -> Option<&'static str> {
    locked_protocols()
        .find(|(locked, _)| *locked == name)
        .map(|(_, digest)| digest)
}

/// The digest that a protocol of this name must have, where it is another one: a built-in name
/// stands for one set of rules.
pub fn locked_otherwise(name: &str, sha256: &str) -> Option<&'static str> {
    locked_digest(name).filter(|locked| *locked != sha256)
}

fn entries(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once(' '))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{Protocol, builtin_protocols};

    /// What is wrong with a lock, and what to do about it.
    fn faults(lock: &str, protocols: &[Protocol]) -> Vec<String> {
        let mut faults = Vec::new();
        for protocol in protocols {
            let (name, digest) = (&protocol.name, protocol.sha256().unwrap());
            let mut locked = entries(lock).filter(|(entry, _)| entry == name);
            match locked.next() {
                None => faults.push(format!(
                    "protocol {name} is not locked: add the line `{name} {digest}` to \
                     protocols/protocols.lock"
                )),
                Some((_, stands)) if stands != digest => faults.push(format!(
                    "protocol {name} is locked as {stands} and is now {digest}: restore it, and \
                     give the changed rules a new name in a file of their own"
                )),
                Some(_) if locked.next().is_some() => {
                    faults.push(format!("protocol {name} is locked twice"));
                }
                Some(_) => {}
            }
        }
        for (name, _) in entries(lock) {
            if !protocols.iter().any(|protocol| protocol.name == name) {
                faults.push(format!(
                    "protocol {name} is locked and no longer built in: certificates name it, \
                     restore it"
                ));
            }
        }
        faults
    }

    #[test]
    fn every_builtin_protocol_stands_as_it_was_locked() {
        let faults = faults(LOCK, &builtin_protocols());
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }

    #[test]
    fn the_lock_is_sorted_and_holds_names_and_digests_only() {
        let lines: Vec<&str> = LOCK.lines().filter(|line| !line.starts_with('#')).collect();
        assert!(lines.is_sorted(), "{lines:#?}");
        assert_eq!(entries(LOCK).count(), lines.len());
        let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        for (name, digest) in locked_protocols() {
            assert!(digest.len() == 64 && digest.bytes().all(hex), "{name}");
            assert_eq!(locked_digest(name), Some(digest));
        }
        assert_eq!(locked_digest("Reference"), None);
        let (name, digest) = locked_protocols().next().unwrap();
        assert_eq!(locked_otherwise(name, digest), None);
        assert_eq!(locked_otherwise(name, "other"), Some(digest));
        assert_eq!(locked_otherwise("own", "other"), None);
    }

    #[test]
    fn changed_new_and_lost_protocols_are_named_with_what_to_do() {
        let mut protocols = builtin_protocols();
        protocols[0].rules.gross_loss.limit = 0.03;
        protocols[1].description.push('.');
        let lost = protocols.pop().unwrap().name;
        let mut novel = protocols[2].clone();
        novel.name = "novel".to_owned();
        protocols.push(novel);
        let found = faults(LOCK, &protocols);
        assert_eq!(found.len(), 4, "{found:#?}");
        for at in 0..2 {
            let name = &protocols[at].name;
            assert!(found[at].starts_with(&format!("protocol {name} is locked as ")));
            assert!(found[at].contains("a new name"), "{}", found[at]);
        }
        assert!(found[2].contains("add the line `novel "), "{}", found[2]);
        assert!(found[3].starts_with(&format!("protocol {lost} is locked and no longer")));
    }
}
