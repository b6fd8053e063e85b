//! What the demos are made of: where their rows live, what each of them does, and how it is shown.

pub(crate) mod args;
pub(crate) mod chart;
pub(crate) mod crowd;
pub(crate) mod database;
pub(crate) mod flash_sale;
pub(crate) mod oncall;
pub(crate) mod oversell;
pub(crate) mod show;
pub(crate) mod strategy;
pub(crate) mod trouble;
