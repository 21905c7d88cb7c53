//! Structs of later releases.

use core::ffi::{c_int, c_void};

use crate::bindings::ibv_context;
use crate::later::constants::ibv_comp_cntr_type;

/// Structs that a program fills, all zero bits by default.
macro_rules! structs {
    ($(
        $(#[$doc:meta])*
        pub struct $name:ident { $($(#[$field_doc:meta])* pub $field:ident: $ty:ty,)* }
    )*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Debug, Copy, Clone)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $ty,)*
        }

        impl Default for $name {
            fn default() -> Self {
                // SAFETY: integers and raw pointers are valid with all bits zero.
                unsafe { core::mem::zeroed() }
            }
        }
    )*};
}

structs! {
    /// A handle for the way of direct memory access (steering tags), of rdma-core 59. The library allocates it.
    pub struct ibv_dmah {
        /// The context that it belongs to.
        pub context: *mut ibv_context,
    }

    /// What [`ibv_alloc_dmah`](crate::ibv_alloc_dmah) is asked for, of rdma-core 59.
    pub struct ibv_dmah_init_attr {
        /// Which of the fields below count: bits of [`ibv_dmah_init_attr_mask`](crate::ibv_dmah_init_attr_mask).
        pub comp_mask: u32,
        /// The processor whose cache the device shall write to.
        pub cpu_id: u32,
        /// The processing hint of PCI Express, 2 bits.
        pub ph: u8,
        /// What the memory is: one of [`ibv_tph_mem_type`](crate::ibv_tph_mem_type).
        pub tph_mem_type: u8,
    }

    /// What [`ibv_reg_mr_ex`](crate::ibv_reg_mr_ex) registers, of rdma-core 59 (`buf`: 64).
    pub struct ibv_mr_init_attr {
        /// Length in bytes.
        pub length: usize,
        /// Bits of [`ibv_access_flags`](crate::ibv_access_flags).
        pub access: c_int,
        /// Which of the fields below count: bits of [`ibv_mr_init_attr_mask`](crate::ibv_mr_init_attr_mask).
        pub comp_mask: u64,
        /// The address at which remote addresses of the region begin.
        pub iova: u64,
        /// The memory.
        pub addr: *mut c_void,
        /// The descriptor of a DMA buffer, in place of `addr`.
        pub fd: c_int,
        /// Where in the DMA buffer the region begins, in bytes.
        pub fd_offset: u64,
        /// How the device shall access it.
        pub dmah: *mut ibv_dmah,
        /// The buffer that `addr` lies in, from [`ibv_alloc_buf`](crate::ibv_alloc_buf).
        pub buf: *mut ibv_buf,
    }

    /// Several descriptors, of rdma-core 65.
    pub struct ibv_fd_arr {
        /// The first.
        pub arr: *mut c_int,
        /// How many.
        pub count: u32,
    }

    /// What completion counters a device has, of rdma-core 65.
    pub struct ibv_comp_cntr_caps {
        /// The highest value of a counter.
        pub max_value: u64,
        /// How many counters there may be.
        pub max_counters: u32,
        /// Which operations can be counted: bits of [`ibv_qp_attach_comp_cntr_op`](crate::ibv_qp_attach_comp_cntr_op).
        pub supported_qp_attach_ops: u32,
    }

    /// A completion counter, of rdma-core 65. The library allocates it.
    pub struct ibv_comp_cntr {
        /// The context that it belongs to.
        pub context: *mut ibv_context,
        /// The kernel's number for it.
        pub handle: u32,
    }

    /// What [`ibv_create_comp_cntr`](crate::ibv_create_comp_cntr) is asked for, of rdma-core 65.
    pub struct ibv_comp_cntr_init_attr {
        /// No bits are defined: 0.
        pub comp_mask: u32,
        /// What is counted.
        pub type_: ibv_comp_cntr_type,
        /// No bits are defined: 0.
        pub flags: u32,
    }

    /// What [`ibv_qp_attach_comp_cntr`](crate::ibv_qp_attach_comp_cntr) is asked for, of rdma-core 65.
    pub struct ibv_qp_attach_comp_cntr_attr {
        /// No bits are defined: 0.
        pub comp_mask: u32,
        /// Bits of [`ibv_qp_attach_comp_cntr_op`](crate::ibv_qp_attach_comp_cntr_op).
        pub op_mask: u32,
    }
}

/// A buffer of [`ibv_alloc_buf`](crate::ibv_alloc_buf), of rdma-core 64: only the library knows what is in it.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_buf {
    _unused: [u8; 0],
}
