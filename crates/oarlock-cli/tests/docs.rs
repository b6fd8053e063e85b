//! Pages that are generated from the code, or must keep up with it.

#[cfg(test)]
mod docs {
    mod complaints;
    mod pages;
}
