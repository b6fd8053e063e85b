//! Reads `--url URL` from the arguments of an example.

/// The URL of the store: the one that `--url` names, or `mem:`, the memory of this process.
pub(crate) fn from_args() -> Result<String, String> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Ok("mem:".to_owned()),
        ["--url", url] => Ok(url.to_owned()),
        _ => Err(format!("usage: [--url URL], not {args:?}")),
    }
}
