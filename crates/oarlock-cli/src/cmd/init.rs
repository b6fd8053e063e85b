//! `oarlock init`: create what the store needs, or print it.

use crate::args::InitArgs;
use crate::exit::{Code, Exit, Failure};
use crate::output;
use crate::store::{Store, block_on};

pub(crate) fn main(args: &InitArgs) -> Result<Exit, Failure> {
    let store = Store::new(&args.store)?;
    let needs = if args.print {
        let script = oarlock::setup::script(&store.url, args.grant.as_deref())?;
        script.map(|script| output::print(&script)).transpose()?.is_some()
    } else {
        block_on(async { Ok(oarlock::setup::init(store.url.clone(), args.grant.clone()).await?) })?
    };
    if needs && !args.print {
        store.words.note(&format!("{} has what locks need", store.url));
    } else if !needs {
        store.words.note(&format!("{} needs nothing", store.url));
    }
    Ok(Code::Success.into())
}
