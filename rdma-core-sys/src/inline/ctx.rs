//! The extended operation table.

use core::mem::offset_of;
use core::ptr;

use crate::bindings::{ibv_context, verbs_context};
use crate::constants::__VERBS_ABI_IS_EXTENDED;

/// The extended context that `ctx` lies within, or NULL.
///
/// The struct grows at its front: only fields that lie at most `(*result).sz` bytes before its end exist.
///
/// # Safety
/// - `ctx` is an open context.
#[inline]
#[must_use]
pub unsafe fn verbs_get_ctx(ctx: *mut ibv_context) -> *mut verbs_context {
    // SAFETY: the context is open.
    let abi = unsafe { (*ctx).abi_compat };
    if abi != __VERBS_ABI_IS_EXTENDED {
        return ptr::null_mut();
    }
    ctx.wrapping_byte_sub(offset_of!(verbs_context, context))
        .cast()
}

/// The slot `$op` of the extended table of an open context: `None` when the library is too old to have it, or the provider
/// left it NULL. In C a macro of the same name, which gives the table instead.
macro_rules! verbs_get_ctx_op {
    ($ctx:expr, $op:ident) => {{
        // SAFETY: the context is open, as the caller of the function around this promised.
        let vctx = unsafe { $crate::verbs_get_ctx($ctx) };
        if vctx.is_null() {
            None
        } else {
            const NEEDED: usize = size_of::<$crate::verbs_context>()
                - core::mem::offset_of!($crate::verbs_context, $op);
            // SAFETY: an extended context always has its size, next to the plain context at the end.
            let size = unsafe { (*vctx).sz };
            if size < NEEDED {
                None
            } else {
                // SAFETY: the size covers this slot.
                unsafe { (*vctx).$op }
            }
        }
    }};
}

/// The context of an object, or the argument that is one.
macro_rules! context_of {
    ($context:ident) => {
        $context
    };
    ($object:ident.$context:ident) => {{
        // SAFETY: the object is live, as the caller of the function around this promised.
        unsafe { (*$object).$context }
    }};
}

/// Functions that only pass their arguments on to a slot of the extended table; `else` names what happens without it.
macro_rules! extended_ops {
    ($(
        $(#[$doc:meta])*
        fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty
            = $slot:ident of $object:ident $(.$context:ident)? else $missing:ident;
    )*) => {$(
        $(#[$doc])*
        #[inline]
        pub unsafe fn $name($($arg: $ty),*) -> $ret {
            let context = context_of!($object $(.$context)?);
            match verbs_get_ctx_op!(context, $slot) {
                // SAFETY: the caller's promises are the ones that the provider's function needs.
                Some(op) => unsafe { op($($arg),*) },
                None => $crate::inline::$missing(),
            }
        }
    )*};
}
