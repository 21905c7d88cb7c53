//! What the measured code consists of, instruction by instruction: nothing may lock, and nothing may enter the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use super::callgrind::Profile;

/// The instructions of the run that must not be there, each with its place; none if all is well.
pub(crate) fn forbidden(profile: &Profile) -> Result<Vec<String>, String> {
    let program = std::env::current_exe().map_err(|e| format!("where am I: {e}"))?;
    let mut found = Vec::new();
    for (object, addresses) in &profile.executed {
        // What lies in no file is code made at run time.
        let text = disassemble(object)?;
        found.extend(
            offending(&text, addresses)?
                .into_iter()
                .map(|what| format!("{}: {what}", object.display())),
        );
    }
    let own = profile.executed.get(&program).map_or(0, BTreeSet::len);
    if own == 0 {
        return Err(format!(
            "no instruction of {} was counted",
            program.display()
        ));
    }
    Ok(found)
}

fn disassemble(object: &Path) -> Result<String, String> {
    let output = Command::new("objdump")
        .args(["--disassemble", "--no-show-raw-insn", "-M", "intel"])
        .arg(object)
        .output()
        .map_err(|e| format!("cannot run objdump (package binutils): {e}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("objdump {}: {said}", object.display()));
    }
    String::from_utf8(output.stdout).map_err(|e| format!("what objdump says is no text: {e}"))
}

/// The lines of a disassembly at these addresses that lock memory or enter the kernel.
fn offending(text: &str, addresses: &BTreeSet<u64>) -> Result<Vec<String>, String> {
    let instructions: BTreeMap<u64, &str> = text.lines().filter_map(instruction).collect();
    let mut found = Vec::new();
    for address in addresses {
        let Some(line) = instructions.get(address) else {
            return Err(format!("objdump shows no instruction at {address:#x}"));
        };
        if locks(line) || enters_kernel(line) {
            found.push(format!("{address:#x}: {line}"));
        }
    }
    Ok(found)
}

/// Address and text of a line: `   33c40:\tpush   rbp`.
fn instruction(line: &str) -> Option<(u64, &str)> {
    let (address, text) = line.split_once(":\t")?;
    let address = u64::from_str_radix(address.trim(), 16).ok()?;
    Some((address, text.trim()))
}

/// An exchange with memory locks without the prefix.
fn locks(text: &str) -> bool {
    let mut words = text.split_whitespace();
    words.clone().any(|word| word == "lock") || words.next() == Some("xchg") && text.contains('[')
}

fn enters_kernel(text: &str) -> bool {
    let first = text.split_whitespace().next();
    matches!(first, Some("syscall" | "sysenter" | "int"))
}

/// That the rules above see what they are made for.
pub(crate) fn rules_hold() -> Result<(), String> {
    for (text, bad) in [
        ("lock inc DWORD PTR [rdi]", true),
        (
            "lock cmpxchg QWORD PTR [rip+0x8cb52],rcx        # c0790 <x>",
            true,
        ),
        ("xchg   DWORD PTR [rdi],eax", true),
        ("xchg   eax,ecx", false),
        ("syscall", true),
        ("int    0x80", true),
        ("inc    DWORD PTR [rdi]", false),
        ("call   1234 <clock>", false),
        ("xadd   eax,ecx", false),
    ] {
        if (locks(text) || enters_kernel(text)) != bad {
            return Err(format!("`{text}` is taken for the opposite of what it is"));
        }
    }
    let listing = "    10:\tlock inc DWORD PTR [rdi]\n    14:\tret\n";
    let found = offending(listing, &BTreeSet::from([0x10, 0x14]))?;
    if found != ["0x10: lock inc DWORD PTR [rdi]"] {
        return Err(format!("found {found:?} in {listing:?}"));
    }
    match offending(listing, &BTreeSet::from([0x12])) {
        Err(_) => Ok(()),
        Ok(_) => Err("an instruction that is not in the listing was passed over".to_owned()),
    }
}
