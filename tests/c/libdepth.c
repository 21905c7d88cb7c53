/* Preloaded into depth_peer: librdmacm's commands for the kernel offer 255 reads in flight, whatever
 * librdmacm thought right, and so the peer is offered 255. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_user_cm.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static ssize_t forward(int fd, const void *data, size_t len)
{
	return syscall(SYS_write, fd, data, len);
}

ssize_t write(int fd, const void *data, size_t len)
{
	char copy[1024];
	struct rdma_ucm_cmd_hdr header;
	struct rdma_ucm_conn_param *param;

	if (!data || len < sizeof(header) || len > sizeof(copy))
		return forward(fd, data, len);
	memcpy(copy, data, len);
	memcpy(&header, copy, sizeof(header));
	/* Text and other commands do not look like this. */
	if (header.in + sizeof(header) != len)
		return forward(fd, data, len);
	if (header.cmd == RDMA_USER_CM_CMD_CONNECT && len >= sizeof(header) + sizeof(*param))
		param = &((struct rdma_ucm_connect *)(copy + sizeof(header)))->conn_param;
	else if (header.cmd == RDMA_USER_CM_CMD_ACCEPT && len >= sizeof(header) + sizeof(*param))
		param = &((struct rdma_ucm_accept *)(copy + sizeof(header)))->conn_param;
	else
		return forward(fd, data, len);
	param->responder_resources = 255;
	param->initiator_depth = 255;
	fprintf(stderr, "offered 255 in command %u\n", header.cmd);
	return forward(fd, copy, len);
}

/* The kernel hands the offer back for this end's own queue pair, which must stay within the device. */
int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	int (*real)(struct ibv_qp *, struct ibv_qp_attr *, int) = dlsym(RTLD_NEXT, "ibv_modify_qp");

	if (attr->max_rd_atomic > 16)
		attr->max_rd_atomic = 16;
	if (attr->max_dest_rd_atomic > 16)
		attr->max_dest_rd_atomic = 16;
	return real(qp, attr, mask);
}
