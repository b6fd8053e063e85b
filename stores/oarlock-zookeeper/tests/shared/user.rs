//! A user with the rights that locks need, and no other.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, bail};
use oarlock_zookeeper::Config;
use zookeeper_client as zk;

/// Does what an administrator would do for the user `app` at the prompt of ZooKeeper's own client, and lets `config`
/// log in as that user.
pub(crate) async fn with_user(server: SocketAddr, config: Config) -> Result<Config> {
    let admin = zk::Client::connect(&server.to_string()).await?;
    for command in oarlock_zookeeper::rights(&config, "app")?.lines() {
        match command.split(' ').collect::<Vec<_>>()[..] {
            ["addauth", scheme, who] => admin.auth(scheme, who.replace("PASSWORD", "swordfish").as_bytes()).await?,
            ["create", path] => {
                let open = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
                match admin.create(path, b"", &open).await {
                    Ok(_) | Err(zk::Error::NodeExists) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            ["setAcl", path, acl] => {
                let letters = acl.strip_prefix("auth::").context("for whom?")?;
                admin.set_acl(path, &[zk::Acl::new(permissions(letters)?, zk::AuthId::authed())], None).await?;
            }
            _ => bail!("unknown: {command}"),
        }
    }
    Ok(config.digest("app", "swordfish"))
}

fn permissions(letters: &str) -> Result<zk::Permission> {
    letters.chars().try_fold(zk::Permission::NONE, |all, letter| {
        let one = match letter {
            'c' => zk::Permission::CREATE,
            'd' => zk::Permission::DELETE,
            'r' => zk::Permission::READ,
            'w' => zk::Permission::WRITE,
            'a' => zk::Permission::ADMIN,
            _ => bail!("no permission: {letter}"),
        };
        Ok(all | one)
    })
}
