#![no_main]

#[path = "../rules.rs"]
#[allow(dead_code, reason = "each target has one rule")]
mod rules;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rules::peer_config_descriptor(bytes));
