//! Which attributes a transition takes, by the type of the queue pair: the kernel's table.

use rdma_core_sys as sys;
use sys::ibv_qp_attr_mask as Mask;

use super::state::{QpAttributes, QpType};
use crate::error::{Error, ErrorKind};

/// A way between two states on which attributes are a matter of choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// RTS, or SQD, to RTS.
    ToRts,
    /// SQE to RTS.
    Recover,
    /// SQD to SQD.
    InSqd,
}

impl Step {
    fn name(self) -> &'static str {
        match self {
            Self::ToRts => "to RTS",
            Self::Recover => "from SQE to RTS",
            Self::InSqd => "within SQD",
        }
    }

    /// The attributes that may be set, besides the states themselves.
    fn optional(self, qp_type: QpType) -> Mask {
        let connected = Mask::IBV_QP_ALT_PATH | Mask::IBV_QP_PATH_MIG_STATE;
        match (self, qp_type) {
            (Self::ToRts | Self::Recover, QpType::UD) => Mask::IBV_QP_QKEY,
            (Self::ToRts, QpType::UC | QpType::XRC_SEND) => connected | Mask::IBV_QP_ACCESS_FLAGS,
            (Self::ToRts, QpType::RC | QpType::XRC_RECV) => {
                connected | Mask::IBV_QP_ACCESS_FLAGS | Mask::IBV_QP_MIN_RNR_TIMER
            }
            (Self::Recover, QpType::UC) => Mask::IBV_QP_ACCESS_FLAGS,
            (Self::InSqd, QpType::UD) => Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_QKEY,
            (Self::InSqd, _) => {
                let mut mask = connected
                    | Mask::IBV_QP_AV
                    | Mask::IBV_QP_ACCESS_FLAGS
                    | Mask::IBV_QP_PKEY_INDEX;
                if qp_type != QpType::UC {
                    mask = mask | Mask::IBV_QP_PORT | Mask::IBV_QP_TIMEOUT;
                }
                if sends_reliably(qp_type) {
                    mask = mask
                        | Mask::IBV_QP_RETRY_CNT
                        | Mask::IBV_QP_RNR_RETRY
                        | Mask::IBV_QP_MAX_QP_RD_ATOMIC;
                }
                if receives_reliably(qp_type) {
                    mask = mask | Mask::IBV_QP_MAX_DEST_RD_ATOMIC | Mask::IBV_QP_MIN_RNR_TIMER;
                }
                mask
            }
            _ => Mask(0),
        }
    }

    /// Refuses what the step does not take for the type, by name.
    pub(super) fn check(self, qp_type: QpType, attributes: &QpAttributes) -> Result<(), Error> {
        let states = Mask::IBV_QP_STATE | Mask::IBV_QP_CUR_STATE;
        let given = attributes.as_raw().1.cast_unsigned();
        let extra = given & !(self.optional(qp_type) | states).0;
        let names: Vec<_> = NAMES
            .iter()
            .filter(|(bit, _)| extra & bit.0 != 0)
            .map(|&(_, name)| name)
            .collect();
        if names.is_empty() {
            return Ok(());
        }
        Err(Error::refused(
            "ibv_modify_qp",
            ErrorKind::InvalidArgument,
            format!(
                "{} cannot be set on a {qp_type} queue pair {}",
                names.join(", "),
                self.name()
            ),
        ))
    }
}

/// Whether its requests are acknowledged and sent again.
pub(super) fn sends_reliably(qp_type: QpType) -> bool {
    matches!(qp_type, QpType::RC | QpType::XRC_SEND)
}

/// Whether it acknowledges requests, and answers reads and atomics.
pub(super) fn receives_reliably(qp_type: QpType) -> bool {
    matches!(qp_type, QpType::RC | QpType::XRC_RECV)
}

/// The attributes that are a matter of choice, as their fields are called here.
const NAMES: &[(Mask, &str)] = &[
    (Mask::IBV_QP_ACCESS_FLAGS, "access"),
    (Mask::IBV_QP_PKEY_INDEX, "pkey_index"),
    (Mask::IBV_QP_PORT, "port"),
    (Mask::IBV_QP_QKEY, "qkey"),
    (Mask::IBV_QP_AV, "address"),
    (Mask::IBV_QP_TIMEOUT, "timeout"),
    (Mask::IBV_QP_RETRY_CNT, "retry_count"),
    (Mask::IBV_QP_RNR_RETRY, "rnr_retry"),
    (Mask::IBV_QP_MAX_QP_RD_ATOMIC, "max_rd_atomic"),
    (Mask::IBV_QP_ALT_PATH, "alternate_path"),
    (Mask::IBV_QP_MIN_RNR_TIMER, "min_rnr_timer"),
    (Mask::IBV_QP_MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic"),
    (Mask::IBV_QP_PATH_MIG_STATE, "path_migration"),
];
