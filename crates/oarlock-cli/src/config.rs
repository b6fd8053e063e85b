//! The configuration file: stores with a name, for those who work with several.

use std::collections::BTreeMap;
use std::path::PathBuf;

use oarlock_core::text;
use serde::Deserialize;

use crate::exit::{Code, Failure};

/// The whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConfigFile {
    /// The profile that is used if nothing else names a store.
    pub(crate) profile: Option<String>,
    #[serde(default)]
    profiles: BTreeMap<String, Profile>,
    #[serde(skip)]
    path: PathBuf,
}

/// A store with a name.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Profile {
    pub(crate) url: Option<String>,
    pub(crate) url_file: Option<PathBuf>,
    pub(crate) password_file: Option<PathBuf>,
}

/// Without its content: the URL may hold a password.
impl std::fmt::Debug for Profile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Profile").finish_non_exhaustive()
    }
}

impl ConfigFile {
    /// Reads it; nothing where there is no file.
    pub(crate) fn read() -> Result<Self, Failure> {
        let Some(path) = path() else { return Ok(Self::default()) };
        let content = match std::fs::read_to_string(&path) {
            Ok(content) => content,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self { path, ..Self::default() }),
            Err(error) => return Err(Failure::new(Code::Config, format!("cannot read {}: {error}", path.display()))),
        };
        Self::parse(path, &content)
    }

    /// Reads its content.
    pub(crate) fn parse(path: PathBuf, content: &str) -> Result<Self, Failure> {
        match toml::from_str::<Self>(content) {
            Ok(file) => Ok(Self { path, ..file }),
            Err(error) => {
                // Not a word of the error itself: it quotes keys and values, and with them a password.
                let upto = error.span().and_then(|span| content.get(..span.start)).unwrap_or_default();
                let (path, line) = (path.display(), upto.matches('\n').count() + 1);
                let wanted = "expected profile = \"NAME\", or [profiles.NAME] with url, url_file or password_file";
                Err(Failure::new(Code::Config, format!("{path}, line {line}: {wanted}")))
            }
        }
    }

    /// The profile of this name.
    pub(crate) fn profile(&self, name: &str) -> Result<Profile, Failure> {
        self.profiles.get(name).cloned().ok_or_else(|| {
            let known: Vec<_> = self.profiles.keys().map(|name| text::quoted(name)).collect();
            let known =
                if known.is_empty() { "it has none".to_owned() } else { format!("it has {}", known.join(", ")) };
            let (name, path) = (text::quoted(name), self.path.display());
            Failure::new(Code::Config, format!("there is no profile {name} in {path}: {known}"))
        })
    }
}

fn path() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let dir = set("XDG_CONFIG_HOME").or_else(|| set("HOME").map(|home| home.join(".config")))?;
    Some(dir.join("oarlock/config.toml"))
}
