/* What the bindings are made from. */
#include <infiniband/verbs.h>
#include <infiniband/tm_types.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
