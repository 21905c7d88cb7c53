//! The kernel's table: which attributes a transition of a queue pair must and may have.

use crate::bindings::{ibv_qp_attr_mask, ibv_qp_state, ibv_qp_type};

/// Required and optional attributes, besides the state itself; `None` when there is no such transition.
pub(super) fn attributes(
    qp_type: ibv_qp_type,
    from: ibv_qp_state,
    to: ibv_qp_state,
) -> Option<(u32, u32)> {
    use ibv_qp_attr_mask as A;
    use ibv_qp_state as S;

    let rc = qp_type == ibv_qp_type::IBV_QPT_RC;
    let ud = qp_type == ibv_qp_type::IBV_QPT_UD;
    let none = A(0);
    let init = if ud {
        A::IBV_QP_PKEY_INDEX | A::IBV_QP_PORT | A::IBV_QP_QKEY
    } else {
        A::IBV_QP_PKEY_INDEX | A::IBV_QP_PORT | A::IBV_QP_ACCESS_FLAGS
    };
    let running = if ud {
        A::IBV_QP_CUR_STATE | A::IBV_QP_QKEY
    } else {
        let both = A::IBV_QP_CUR_STATE
            | A::IBV_QP_ALT_PATH
            | A::IBV_QP_ACCESS_FLAGS
            | A::IBV_QP_PATH_MIG_STATE;
        if rc {
            both | A::IBV_QP_MIN_RNR_TIMER
        } else {
            both
        }
    };
    let (required, optional) = match (from, to) {
        (_, S::IBV_QPS_RESET) => (none, none),
        (S::IBV_QPS_RESET, S::IBV_QPS_ERR) => return None,
        (_, S::IBV_QPS_ERR) => (none, none),
        (S::IBV_QPS_RESET, S::IBV_QPS_INIT) => (init, none),
        (S::IBV_QPS_INIT, S::IBV_QPS_INIT) => (none, init),
        (S::IBV_QPS_INIT, S::IBV_QPS_RTR) if ud => (none, A::IBV_QP_PKEY_INDEX | A::IBV_QP_QKEY),
        (S::IBV_QPS_INIT, S::IBV_QPS_RTR) => {
            let both = A::IBV_QP_AV | A::IBV_QP_PATH_MTU | A::IBV_QP_DEST_QPN | A::IBV_QP_RQ_PSN;
            let required = if rc {
                both | A::IBV_QP_MAX_DEST_RD_ATOMIC | A::IBV_QP_MIN_RNR_TIMER
            } else {
                both
            };
            (
                required,
                A::IBV_QP_ALT_PATH | A::IBV_QP_ACCESS_FLAGS | A::IBV_QP_PKEY_INDEX,
            )
        }
        (S::IBV_QPS_RTR, S::IBV_QPS_RTS) => {
            let required = if rc {
                A::IBV_QP_TIMEOUT
                    | A::IBV_QP_RETRY_CNT
                    | A::IBV_QP_RNR_RETRY
                    | A::IBV_QP_SQ_PSN
                    | A::IBV_QP_MAX_QP_RD_ATOMIC
            } else {
                A::IBV_QP_SQ_PSN
            };
            (required, running)
        }
        (S::IBV_QPS_RTS | S::IBV_QPS_SQD, S::IBV_QPS_RTS) => (none, running),
        (S::IBV_QPS_SQE, S::IBV_QPS_RTS) if !rc => (none, running),
        (S::IBV_QPS_RTS, S::IBV_QPS_SQD) => (none, A::IBV_QP_EN_SQD_ASYNC_NOTIFY),
        _ => return None,
    };
    Some((required.0, optional.0))
}
