//! The fewest rights that locks need. Every test of them, and `oarlock init --print`, takes them from here.

use oarlock_core::{Error, ErrorKind, Result};

use crate::config::Config;
use crate::error::SCHEME;

/// What a user may do with the root: create nodes below it, and read it. All nodes below belong to the user that
/// creates them.
const ON_ROOT: &str = "cr";

/// The commands (`zkCli.sh`), one on a line, that make the root of this configuration and give it to `user`, and to no
/// other. The first has the password of the user in place of `PASSWORD`.
///
/// # Errors
/// [`ErrorKind::Config`] for the whole tree as the root: it is not for one user.
pub fn rights(config: &Config, user: &str) -> Result<String> {
    let root = config.root.trim_end_matches('/');
    if root.is_empty() {
        let message = "there is no root of its own to give a user rights on: name one, as in zk://host/team";
        return Err(Error::new(ErrorKind::Config, message).on(SCHEME));
    }
    let mut commands = format!("addauth digest {user}:PASSWORD\n");
    // Each node above it, then itself.
    for (end, _) in root.match_indices('/').skip(1).chain([(root.len(), "")]) {
        commands += &format!("create {}\n", word(&root[..end]));
    }
    Ok(commands + &format!("setAcl {} auth::{ON_ROOT}\n", word(root)))
}

/// One word of that program.
fn word(text: &str) -> String {
    if text.contains(char::is_whitespace) { format!("\"{text}\"") } else { text.to_owned() }
}
