//! A user with the rights that locks need, and no other.

use oarlock_etcd::Config;
use oarlock_testbed::Etcd;

/// Creates a root and the user `app`, whom `config` logs in as, and lets the server require a password from now on.
pub(crate) fn with_user(server: &Etcd, config: &mut Config) -> anyhow::Result<()> {
    server.ctl(&["user", "add", "app:swordfish"])?;
    for command in oarlock_etcd::rights(config, "app").lines() {
        let words: Vec<_> = command.split(' ').skip(1).collect();
        server.ctl(&words)?;
    }
    for words in [&["user", "add", "root:secret"][..], &["user", "grant-role", "root", "root"], &["auth", "enable"]] {
        server.ctl(words)?;
    }
    (config.user, config.password) = (Some("app".into()), Some("swordfish".into()));
    Ok(())
}
