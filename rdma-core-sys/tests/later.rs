//! Functions of later releases: a program that calls them starts with a library that does not have them and is told so, and
//! with one that has them its calls arrive.
#![cfg(not(miri))]

#[cfg(not(rdma_fake))]
mod common;

use std::ffi::{c_int, c_void};
use std::ptr;

use rdma_core_sys::*;

/// How a function answers, and what the answer is where the library does not have it.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    /// NULL with errno set.
    Pointer(usize),
    /// The errno, or what only [`minus_one`] gives: -1 with errno set.
    Number(c_int),
    Nothing,
}

impl<T> From<*mut T> for Answer {
    fn from(pointer: *mut T) -> Self {
        Self::Pointer(pointer.addr())
    }
}

impl From<c_int> for Answer {
    fn from(number: c_int) -> Self {
        Self::Number(number)
    }
}

impl From<()> for Answer {
    fn from((): ()) -> Self {
        Self::Nothing
    }
}

/// A call: the function, what it answers where it is missing, and the answer and errno that it gave now.
struct Call {
    name: &'static str,
    missing: Answer,
    answer: Answer,
    errno: c_int,
}

fn call<T: Into<Answer>>(
    name: &'static str,
    missing: Answer,
    function: impl FnOnce() -> T,
) -> Call {
    set_errno_to_zero();
    let answer = function().into();
    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    Call {
        name,
        missing,
        answer,
        errno,
    }
}

fn set_errno_to_zero() {
    // SAFETY: the call has no precondition.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the C library gives the address of this thread's own variable.
    unsafe { *place = 0 };
}

/// An argument that is a pointer, never to be followed.
fn at<T>(address: usize) -> *mut T {
    ptr::without_provenance_mut(address)
}

/// Calls each function with arguments that tell themselves apart.
///
/// # Safety
/// - No function of the library follows a pointer: it is missing, or one that only records.
unsafe fn call_all() -> Vec<Call> {
    let null = || Answer::Pointer(0);
    let errno = || Answer::Number(libc::EOPNOTSUPP);
    let minus_one = || Answer::Number(-1);
    macro_rules! calls {
        ($($name:ident($($arg:expr),*) => $missing:expr;)*) => {
            vec![$(call(stringify!($name), $missing, || {
                // SAFETY: the caller says that nothing follows a pointer.
                unsafe { $name($($arg),*) }
            })),*]
        };
    }
    let mut calls = calls! {
        ibv_reg_mr_ex(at(1), at(2)) => null();
        ibv_alloc_dmah(at(3), at(4)) => null();
        ibv_dealloc_dmah(at(5)) => errno();
        ibv_query_port_speed(at(6), 7, at(8)) => errno();
        ibv_dm_export_dmabuf_fd(at(9)) => minus_one();
        ibv_alloc_buf(at(10), 11, at(12)) => null();
        ibv_free_buf(at(13)) => Answer::Nothing;
        ibv_reg_buf_mr(at(14), at(15), at(16), 17, 18) => null();
        ibv_export_buf_dmabuf_fd(at(19)) => minus_one();
        _ibv_query_comp_cntr_caps(at(20), at(21), 22) => errno();
        ibv_create_comp_cntr(at(23), at(24)) => null();
        ibv_destroy_comp_cntr(at(25)) => errno();
        ibv_set_comp_cntr(at(26), u64::MAX) => errno();
        ibv_set_err_comp_cntr(at(27), 28) => errno();
        ibv_inc_comp_cntr(at(29), 30) => errno();
        ibv_inc_err_comp_cntr(at(31), 32) => errno();
        ibv_read_comp_cntr(at(33), at(34)) => errno();
        ibv_read_err_comp_cntr(at(35), at(36)) => errno();
        ibv_qp_attach_comp_cntr(at(37), at(38), at(39)) => errno();
        rdma_resolve_addrinfo(at(40), at(41), at(42), at(43)) => minus_one();
        rdma_query_addrinfo(at(44), at(45)) => minus_one();
        rdma_write_cm_event(at(46), rdma_cm_event_type::RDMA_CM_EVENT_USER, -47, 48) => minus_one();
    };
    // Through the function that adds the size.
    calls.push(call("_ibv_query_comp_cntr_caps", errno(), || {
        // SAFETY: as above.
        unsafe { ibv_query_comp_cntr_caps(at(49), at(50)) }
    }));
    #[cfg(all(feature = "rsocket", not(rdma_fake)))]
    calls.extend(calls! {
        repoll_create(51) => minus_one();
        repoll_ctl(52, 53, 54, at(55)) => minus_one();
        repoll_wait(56, at(57), 58, -1) => minus_one();
    });
    calls
}

/// Whether the libraries of this program have a function.
fn is_there(name: &str) -> bool {
    let name = std::ffi::CString::new(name).expect("a name");
    // SAFETY: the name is a C string.
    let address: *mut c_void = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    !address.is_null()
}

#[test]
fn a_function_that_the_library_does_not_have_says_so_in_its_own_way() {
    if is_there("ibv_reg_mr_ex") {
        // Libraries of rdma-core 59 or later, which would follow the pointers.
        return;
    }
    // SAFETY: rdma-core 59 has the oldest of them, and this library does not.
    let calls = unsafe { call_all() };
    assert!(calls.len() >= 23);
    for call in calls {
        assert_eq!(call.answer, call.missing, "{}", call.name);
        let errno = match call.missing {
            Answer::Pointer(_) | Answer::Number(-1) => libc::EOPNOTSUPP,
            _ => 0,
        };
        assert_eq!(call.errno, errno, "errno of {}", call.name);
    }
}

#[test]
fn the_argument_of_an_event_is_the_beginning_of_its_parameters() {
    let mut event = rdma_cm_event::default();
    // SAFETY: the union is at least as long and aligned, as the crate asserts.
    unsafe {
        (&raw mut event.param)
            .cast::<u64>()
            .write(0x1122_3344_5566_7788)
    };
    // SAFETY: the event is a whole one.
    let argument = unsafe { rdma_cm_event_arg(&raw const event) };
    assert_eq!(argument, 0x1122_3344_5566_7788);
}

#[cfg(not(rdma_fake))]
mod with_libraries {
    use std::fmt::Write as _;
    use std::process::Command;

    use super::*;
    use common::signatures::{Signature, signatures};

    /// Where the recording library writes its calls; a run of this program with it is the one that makes them.
    const LOG: &str = "RDMA_CORE_SYS_TEST_LOG";

    fn functions() -> Vec<Signature> {
        let mut functions = signatures("src/later/functions.rs", "fn ");
        functions.extend(signatures("src/later/repoll.rs", "fn "));
        functions
    }

    /// What the recording library returns: no two functions the same.
    fn returned(at: usize) -> usize {
        0x1000 + at
    }

    /// A library that has them all; each writes its name and arguments, and returns a number of its own.
    fn recording_library(functions: &[Signature]) -> std::path::PathBuf {
        let mut program =
            "#include <stdio.h>\n#include <stdlib.h>\n#include <rdma/rdma_cma.h>\n".to_owned();
        for (at, function) in functions.iter().enumerate() {
            for name in function.structs() {
                let _ = writeln!(program, "{name};");
            }
            let formats = " %llx".repeat(function.arguments.len());
            let values: String = (0..function.arguments.len())
                .map(|argument| format!(", (unsigned long long)a{argument}"))
                .collect();
            let back = match function.result.as_str() {
                "void" => String::new(),
                result => format!("\treturn ({result}){};\n", returned(at)),
            };
            let _ = writeln!(
                program,
                "{}\n{{\n\tFILE *log = fopen(getenv(\"{LOG}\"), \"a\");\n\tfprintf(log, \"{}{formats}\\n\"{values});\n\
                 \tfclose(log);\n{back}}}",
                function.in_c(),
                function.name
            );
        }
        let dir = common::scratch("later");
        let source = dir.join("later.c");
        let library = dir.join("later.so");
        std::fs::write(&source, program).expect("the scratch directory is writable");
        common::cc(&[
            "-std=gnu11",
            "-Wno-int-conversion",
            "-Wno-pointer-to-int-cast",
            "-shared",
            "-fPIC",
            "-o",
            library.to_str().expect("the path is text"),
            source.to_str().expect("the path is text"),
        ]);
        library
    }

    #[test]
    fn a_call_reaches_a_library_that_has_the_function_with_all_its_arguments() {
        let functions = functions();
        if std::env::var_os(LOG).is_some() {
            // The run with the recording library.
            // SAFETY: its functions only record.
            for call in unsafe { call_all() } {
                let at = functions
                    .iter()
                    .position(|function| function.name == call.name);
                let value = returned(at.expect("each is declared"));
                let expected = match call.missing {
                    Answer::Pointer(_) => Answer::Pointer(value),
                    Answer::Number(_) => Answer::Number(value.try_into().expect("a small number")),
                    Answer::Nothing => Answer::Nothing,
                };
                assert_eq!(call.answer, expected, "{}", call.name);
            }
            return;
        }
        let library = recording_library(&functions);
        let log = library.with_file_name("calls");
        // Twice: at the first call a function is looked up, at the second it is known.
        let output = Command::new(std::env::current_exe().expect("this program has a path"))
            .args(["--exact", "with_libraries::a_call_reaches_a_library_that_has_the_function_with_all_its_arguments"])
            .env("LD_PRELOAD", &library)
            .env(LOG, &log)
            .output()
            .expect("this program runs");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && said.contains("1 passed"),
            "{said}"
        );

        let text = std::fs::read_to_string(&log).expect("the library has written");
        let lines: Vec<&str> = text.lines().collect();
        let expected = expected_calls();
        assert_eq!(lines, expected);
        for function in functions {
            let is_called = expected
                .iter()
                .any(|line| line.split(' ').next() == Some(&function.name));
            let has_feature = cfg!(feature = "rsocket") || !function.name.starts_with("repoll");
            assert!(
                is_called || !has_feature,
                "{} is not called by this test",
                function.name
            );
        }
    }

    /// The calls of [`call_all`] as C sees them.
    fn expected_calls() -> Vec<&'static str> {
        let mut calls = vec![
            "ibv_reg_mr_ex 1 2",
            "ibv_alloc_dmah 3 4",
            "ibv_dealloc_dmah 5",
            "ibv_query_port_speed 6 7 8",
            "ibv_dm_export_dmabuf_fd 9",
            "ibv_alloc_buf a b c",
            "ibv_free_buf d",
            "ibv_reg_buf_mr e f 10 11 12",
            "ibv_export_buf_dmabuf_fd 13",
            "_ibv_query_comp_cntr_caps 14 15 16",
            "ibv_create_comp_cntr 17 18",
            "ibv_destroy_comp_cntr 19",
            "ibv_set_comp_cntr 1a ffffffffffffffff",
            "ibv_set_err_comp_cntr 1b 1c",
            "ibv_inc_comp_cntr 1d 1e",
            "ibv_inc_err_comp_cntr 1f 20",
            "ibv_read_comp_cntr 21 22",
            "ibv_read_err_comp_cntr 23 24",
            "ibv_qp_attach_comp_cntr 25 26 27",
            "rdma_resolve_addrinfo 28 29 2a 2b",
            "rdma_query_addrinfo 2c 2d",
            "rdma_write_cm_event 2e 12 ffffffffffffffd1 30",
            "_ibv_query_comp_cntr_caps 31 32 10",
        ];
        if cfg!(feature = "rsocket") {
            calls.extend([
                "repoll_create 33",
                "repoll_ctl 34 35 36 37",
                "repoll_wait 38 39 3a ffffffffffffffff",
            ]);
        }
        calls
    }

    #[test]
    fn a_program_that_calls_them_all_needs_none_of_them_to_start() {
        let program = std::env::current_exe().expect("this program has a path");
        let output = Command::new("nm")
            .arg("-D")
            .arg("--undefined-only")
            .arg(&program)
            .output()
            .expect("nm is installed with the C compiler");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let text = String::from_utf8_lossy(&output.stdout);
        // A function that every library has is needed at the start, so this test would see such a need.
        // SAFETY: the call has no precondition.
        unsafe { ibv_is_fork_initialized() };
        assert!(common::has_word(&text, "ibv_is_fork_initialized"), "{text}");
        for function in functions() {
            assert!(
                !common::has_word(&text, &function.name),
                "{} must be there at the start",
                function.name
            );
        }
    }
}
