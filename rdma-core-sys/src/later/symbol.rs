//! Functions that the library may not have: looked up by name at their first call.

use core::ffi::{CStr, c_void};
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, Ordering};

pub(crate) const LIBIBVERBS: &CStr = c"libibverbs.so.1";
pub(crate) const LIBRDMACM: &CStr = c"librdmacm.so.1";

/// The address of a function of a C library, found at first use.
pub(crate) struct Symbol {
    library: &'static CStr,
    name: &'static CStr,
    /// NULL until it has been found. Not finding it is not remembered: those calls are rare and need not be fast.
    found: AtomicPtr<c_void>,
}

impl Symbol {
    /// `name` ends with the only NUL in it.
    pub(crate) const fn new(library: &'static CStr, name: &'static str) -> Self {
        let Ok(name) = CStr::from_bytes_with_nul(name.as_bytes()) else {
            panic!("the name of a function ends with its only NUL");
        };
        Self {
            library,
            name,
            found: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// The function's address, or `None` when the library does not have it.
    pub(crate) fn address(&self) -> Option<NonNull<c_void>> {
        let known = NonNull::new(self.found.load(Ordering::Acquire));
        known.or_else(|| self.look_up())
    }

    #[cold]
    fn look_up(&self) -> Option<NonNull<c_void>> {
        let found = find(self.library, self.name)?;
        self.found.store(found.as_ptr(), Ordering::Release);
        Some(found)
    }
}

/// Where the linker would have found it; else, for code that was itself loaded with `dlopen`, in the library alone.
#[cfg(not(rdma_fake))]
fn find(library: &CStr, name: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: the name is a C string.
    let everywhere = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if let Some(found) = NonNull::new(everywhere) {
        return Some(found);
    }
    // SAFETY: the name is a C string; with NOLOAD nothing is loaded, so no code runs.
    let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        return None;
    }
    // SAFETY: the handle is open and the name is a C string.
    let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
    if found.is_null() {
        // Not kept, or each call would count the library up once more.
        // SAFETY: the handle was opened above and is not used again.
        unsafe { libc::dlclose(handle) };
    }
    // Where it was found the handle stays open, and with it the address is valid for ever.
    NonNull::new(found)
}

/// The fake device has none of them.
#[cfg(rdma_fake)]
fn find(_library: &CStr, _name: &CStr) -> Option<NonNull<c_void>> {
    None
}

/// Functions of `$library` that may be missing; `else` names what happens then.
macro_rules! later_functions {
    ($library:ident: $(
        $(#[$doc:meta])*
        fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = else $missing:ident;
    )*) => {$(
        $(#[$doc])*
        pub unsafe fn $name($($arg: $ty),*) $(-> $ret)? {
            static SYMBOL: $crate::later::symbol::Symbol = $crate::later::symbol::Symbol::new(
                $crate::later::symbol::$library,
                concat!(stringify!($name), "\0"),
            );
            let Some(address) = SYMBOL.address() else {
                return $crate::inline::$missing();
            };
            // SAFETY: the library's function of this name has this C signature, which tests compare with its header.
            let function = unsafe {
                core::mem::transmute::<
                    core::ptr::NonNull<core::ffi::c_void>,
                    unsafe extern "C" fn($($ty),*) $(-> $ret)?,
                >(address)
            };
            // SAFETY: the caller's promises are the ones that the library's function needs.
            unsafe { function($($arg),*) }
        }
    )*};
}

#[cfg(all(test, not(rdma_fake), not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_found_in_a_library_that_was_loaded_for_others_only() {
        // A library of the C library's package that nothing here is linked with.
        const LIBRARY: &CStr = c"libresolv.so.2";
        let symbol = Symbol::new(LIBRARY, "ns_datetosecs\0");
        assert!(symbol.address().is_none(), "not loaded yet");
        // SAFETY: the library's initialisation has no precondition.
        let handle = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
        assert!(!handle.is_null());
        let found = symbol.address().expect("loaded now");
        // SAFETY: the handle is open and the name is a C string.
        let there = unsafe { libc::dlsym(handle, c"ns_datetosecs".as_ptr()) };
        assert_eq!(found.as_ptr(), there);
        assert_eq!(symbol.address(), Some(found), "known now");
        assert!(
            Symbol::new(LIBRARY, "ns_no_such_function\0")
                .address()
                .is_none()
        );
    }
}
