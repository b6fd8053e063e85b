//! What a store needs before it can be used, and where the embedded one keeps its files.

use crate::driver::BoxFuture;
use crate::registry;
pub use crate::registry::{built_in, local_dir, other_local_dir};
use crate::url::Url;
use crate::{Error, ErrorKind, Result};

type Script = fn(Option<&str>) -> String;
type Run = fn(Url, Option<String>) -> BoxFuture<Result<()>>;

/// The drivers of this build whose stores need something, by the name that [`Url::driver`] gives.
const NEEDS: &[(&str, Script, Run)] = &[
    #[cfg(feature = "mysql")]
    ("mysql", oarlock_mysql::script, |url, grant| {
        Box::pin(async move { oarlock_mysql::init(registry::mysql_config(&url)?, grant.as_deref()).await })
    }),
    #[cfg(feature = "postgres")]
    ("postgres", oarlock_postgres::script, |url, grant| {
        Box::pin(async move { oarlock_postgres::init(registry::postgres_config(&url)?, grant.as_deref()).await })
    }),
];

fn find(url: &Url) -> Result<Option<&'static (&'static str, Script, Run)>> {
    if !registry::built_in(url) {
        return Err(Error::new(ErrorKind::Config, format!("this build has no {} driver", url.driver())));
    }
    Ok(NEEDS.iter().find(|(name, ..)| *name == url.driver()))
}

/// The text that makes what the store behind `url` needs, with the rights of the user `grant`; `None` if it needs nothing.
///
/// # Errors
/// [`ErrorKind::Config`] if this build has no driver for it.
pub fn script(url: &Url, grant: Option<&str>) -> Result<Option<String>> {
    Ok(find(url)?.map(|(_, script, _)| script(grant)))
}

/// Makes what the store behind `url` needs, and gives the user `grant` the rights that locks need; false if it needs nothing.
///
/// # Guarantees
/// What is there already stays as it is. Any number may do this at once.
///
/// # Errors
/// As [`connect`](crate::connect).
pub async fn init(url: Url, grant: Option<String>) -> Result<bool> {
    match find(&url)? {
        Some((_, _, run)) => run(url, grant).await.map(|()| true),
        None => Ok(false),
    }
}
