//! The step `iwarp`: tests over an iWARP device, in a VM of its own.

use super::steps::{on_device, through_vm};
use super::{Options, Outcome};
use crate::error::Result;
use crate::vm;

/// In the names of the tests.
const NAME: &str = "over_iwarp_";

/// Whether the tests over iWARP are to run with the filter.
pub(super) fn wanted(options: &Options) -> bool {
    let filter = options.filter.as_deref();
    options.full && filter.is_none_or(|filter| filter.starts_with(NAME))
}

/// The tests over an iWARP device, in a VM of its own.
pub(super) fn iwarp(options: &Options) -> Result<Outcome> {
    let name = "iwarp";
    let config = vm::Config::from_environment(Some(name.to_owned()), None)?;
    let modules = match vm::siw::obtain(&config) {
        Ok(modules) => modules,
        Err(error) => return Ok(Outcome::missing(error)),
    };
    let up = vm::start(&config).and_then(|()| vm::siw::bring_up(&config, &modules));
    if let Err(error) = up {
        return Ok(Outcome::failed(format!("{name}: {error}")));
    }
    let outcome = on_device(
        name,
        options,
        "--package tests --test iwarp",
        &through_vm(&config, &[])?,
        vm::siw::IWARP_ADDRESS,
        ("RPMA_TEST_NATIVE", ""),
    );
    vm::stop(&config)?;
    outcome
}
