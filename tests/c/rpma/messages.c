/* Messages to and fro with librpma, over one or more connections, with every arrangement of the
 * queues. The client sends the first message of each connection, the server answers, the client
 * sends the next.
 *
 * own=SEED peer=SEED     the sequences, counted on per message
 * connections=N rounds=N
 * imm=1                  messages carry an immediate
 * rcq=N                  entries of a receive completion queue of each connection, 0 for none
 * srq=own|main           a shared receive queue, with a completion queue of its own or without
 * channel=1              the queues of a connection share a completion channel */
#include "peer.h"

#define LENGTH 256
#define MAX_CONNECTIONS 8
#define SLOTS 2 /* receives posted for each connection */

struct line {
	struct rpma_conn *connection;
	struct rpma_cq *cq, *rcq;
	uint32_t qp_num;
	uint64_t sent, completed, received;
};

static struct line lines[MAX_CONNECTIONS];
static uint64_t count, rounds;
static struct rpma_srq *srq;
static struct rpma_cq *srq_rcq;
static struct rpma_mr_local *inbox, *outbox;
static uint8_t *inbox_memory, *outbox_memory;

static uint64_t seed_of(const char *side, uint64_t n, uint64_t round)
{
	return number(side, 1) + 1000 * n + round;
}

static void post_receive(struct rpma_conn *connection, uint64_t slot)
{
	if (srq)
		done(rpma_srq_recv(srq, inbox, slot * LENGTH, LENGTH, (void *)slot), "rpma_srq_recv");
	else
		done(rpma_recv(connection, inbox, slot * LENGTH, LENGTH, (void *)slot), "rpma_recv");
}

static void send_next(uint64_t n)
{
	struct line *line = &lines[n];
	uint64_t seed = seed_of("own", n, line->sent);
	uint64_t offset = n * LENGTH;
	int flags = RPMA_F_COMPLETION_ALWAYS;

	/* The room of the message before is free: it was answered, or has completed. */
	fill(outbox_memory + offset, seed, LENGTH);
	if (number("imm", 0))
		done(rpma_send_with_imm(line->connection, outbox, offset, LENGTH, flags, (uint32_t)seed * 3,
					(void *)(1000 + n)),
		     "rpma_send_with_imm");
	else
		done(rpma_send(line->connection, outbox, offset, LENGTH, flags, (void *)(1000 + n)), "rpma_send");
	line->sent++;
}

static uint64_t line_of(uint32_t qp_num)
{
	for (uint64_t n = 0; n < count; n++)
		if (lines[n].qp_num == qp_num)
			return n;
	must(0, "the completion belongs to one of the connections");
	return 0;
}

static void take_message(const struct ibv_wc *wc, uint64_t n)
{
	struct line *line = &lines[n];
	uint64_t seed = seed_of("peer", n, line->received);

	must(wc->byte_len == LENGTH, "the length of the message");
	expect(inbox_memory + wc->wr_id * LENGTH, seed, LENGTH, "message");
	must(((wc->wc_flags & IBV_WC_WITH_IMM) != 0) == (number("imm", 0) != 0), "an immediate exactly if it should have one");
	if (number("imm", 0) && ntohl(wc->imm_data) != (uint32_t)seed * 3)
		wrong("immediate", line->received, ntohl(wc->imm_data), (uint32_t)seed * 3);
	line->received++;
	post_receive(line->connection, wc->wr_id);
	if (!is_client() || line->sent < rounds)
		send_next(n);
}

/* Takes everything out of a queue; returns how much that was. */
static unsigned drain(struct rpma_cq *cq, int takes_receives, int takes_sends)
{
	struct ibv_wc wc[4];
	unsigned total = 0;
	int got, ret;

	while (!(ret = rpma_cq_get_wc(cq, 4, wc, &got))) {
		for (int at = 0; at < got; at++) {
			uint64_t n;

			if (wc[at].status != IBV_WC_SUCCESS) {
				fprintf(stderr, "operation %d: %s\n", (int)wc[at].wr_id,
					ibv_wc_status_str(wc[at].status));
				exit(EXIT_FAILED);
			}
			n = line_of(wc[at].qp_num);
			if (wc[at].opcode & IBV_WC_RECV) {
				must(takes_receives, "a receive completes in the queue for receives");
				take_message(&wc[at], n);
			} else {
				must(takes_sends && wc[at].wr_id == 1000 + n, "a send completes in its own queue");
				lines[n].completed++;
			}
		}
		total += (unsigned)got;
	}
	must(ret == RPMA_E_NO_COMPLETION, "rpma_cq_get_wc");
	return total;
}

static unsigned drain_all(void)
{
	unsigned total = srq_rcq ? drain(srq_rcq, 1, 0) : 0;

	for (uint64_t n = 0; n < count; n++) {
		total += drain(lines[n].cq, !lines[n].rcq && !srq_rcq, 1);
		if (lines[n].rcq)
			total += drain(lines[n].rcq, 1, 0);
	}
	return total;
}

/* Waits on a shared channel, which must name one of the connection's queues. */
static void wait_shared(const struct line *line)
{
	struct rpma_cq *cq;
	bool is_rcq;

	done(rpma_conn_wait(line->connection, 0, &cq, &is_rcq), "rpma_conn_wait");
	must(cq == (is_rcq ? line->rcq : line->cq), "rpma_conn_wait names the queue");
}

/* Sleeps until a queue reports something, and makes those report again. */
static void wait_any(void)
{
	struct pollfd fds[2 * MAX_CONNECTIONS + 1];
	struct rpma_cq *queues[2 * MAX_CONNECTIONS + 1];
	const struct line *shared[2 * MAX_CONNECTIONS + 1];
	nfds_t used = 0;

	for (uint64_t n = 0; n < count; n++) {
		struct rpma_cq *own[2] = { lines[n].cq, lines[n].rcq };

		for (int at = 0; at < (number("channel", 0) ? 1 : 2); at++) {
			if (!own[at])
				continue;
			if (number("channel", 0)) {
				done(rpma_conn_get_compl_fd(lines[n].connection, &fds[used].fd),
				     "rpma_conn_get_compl_fd");
				must(rpma_cq_wait(own[at]) == RPMA_E_SHARED_CHANNEL,
				     "no waiting on a queue with a shared channel");
				shared[used] = &lines[n];
			} else {
				done(rpma_cq_get_fd(own[at], &fds[used].fd), "rpma_cq_get_fd");
				shared[used] = NULL;
			}
			queues[used++] = own[at];
		}
	}
	if (srq_rcq) {
		done(rpma_cq_get_fd(srq_rcq, &fds[used].fd), "rpma_cq_get_fd");
		shared[used] = NULL;
		queues[used++] = srq_rcq;
	}
	for (nfds_t at = 0; at < used; at++)
		fds[at].events = POLLIN;
	must(poll(fds, used, DEADLINE_MS) > 0, "a completion comes in time");
	for (nfds_t at = 0; at < used; at++) {
		if (!fds[at].revents)
			continue;
		if (shared[at])
			wait_shared(shared[at]);
		else
			done(rpma_cq_wait(queues[at]), "rpma_cq_wait");
	}
}

static int all_done(void)
{
	for (uint64_t n = 0; n < count; n++)
		if (lines[n].received < rounds || lines[n].completed < rounds)
			return 0;
	return 1;
}

static struct rpma_conn_cfg *configuration(void)
{
	struct rpma_conn_cfg *config;

	done(rpma_conn_cfg_new(&config), "rpma_conn_cfg_new");
	done(rpma_conn_cfg_set_cq_size(config, 20), "rpma_conn_cfg_set_cq_size");
	done(rpma_conn_cfg_set_rcq_size(config, (uint32_t)number("rcq", 0)), "rpma_conn_cfg_set_rcq_size");
	done(rpma_conn_cfg_set_compl_channel(config, number("channel", 0)), "rpma_conn_cfg_set_compl_channel");
	if (srq)
		done(rpma_conn_cfg_set_srq(config, srq), "rpma_conn_cfg_set_srq");
	return config;
}

static void make_srq(struct rpma_peer *peer)
{
	struct rpma_srq_cfg *config;

	done(rpma_srq_cfg_new(&config), "rpma_srq_cfg_new");
	if (is("srq", "main"))
		done(rpma_srq_cfg_set_rcq_size(config, 0), "rpma_srq_cfg_set_rcq_size");
	done(rpma_srq_new(peer, config, &srq), "rpma_srq_new");
	done(rpma_srq_get_rcq(srq, &srq_rcq), "rpma_srq_get_rcq");
	must((srq_rcq == NULL) == is("srq", "main"), "a queue of its own exactly if asked for");
	done(rpma_srq_cfg_delete(&config), "rpma_srq_cfg_delete");
	for (uint64_t slot = 0; slot < SLOTS * count; slot++)
		post_receive(NULL, slot);
}

static void open_line(struct rpma_peer *peer, struct rpma_ep *endpoint, struct rpma_conn_cfg *config, uint64_t n)
{
	struct rpma_conn_req *request = endpoint ? next_request(endpoint, config) : new_request(peer, config);
	struct line *line = &lines[n];

	for (uint64_t slot = SLOTS * n; !srq && slot < SLOTS * (n + 1); slot++)
		done(rpma_conn_req_recv(request, inbox, slot * LENGTH, LENGTH, (void *)slot), "rpma_conn_req_recv");
	line->connection = establish(request, NULL, 0);
	done(rpma_conn_get_qp_num(line->connection, &line->qp_num), "rpma_conn_get_qp_num");
	done(rpma_conn_get_cq(line->connection, &line->cq), "rpma_conn_get_cq");
	done(rpma_conn_get_rcq(line->connection, &line->rcq), "rpma_conn_get_rcq");
	must((line->rcq == NULL) == (!number("rcq", 0) || srq_rcq != NULL), "a receive queue exactly if asked for");
}

int main(int argc, char **argv)
{
	struct rpma_ep *endpoint = NULL;
	struct rpma_conn_cfg *config;
	struct rpma_peer *peer;

	begin(argc, argv);
	count = number("connections", 1);
	rounds = number("rounds", 4);
	must(count <= MAX_CONNECTIONS, "at most 8 connections");
	peer = make_peer();
	inbox_memory = pages(MAX_CONNECTIONS * SLOTS * LENGTH);
	outbox_memory = pages(4096);
	done(rpma_mr_reg(peer, inbox_memory, MAX_CONNECTIONS * SLOTS * LENGTH, RPMA_MR_USAGE_RECV, &inbox),
	     "rpma_mr_reg");
	done(rpma_mr_reg(peer, outbox_memory, 4096, RPMA_MR_USAGE_SEND, &outbox), "rpma_mr_reg");
	if (*text("srq", ""))
		make_srq(peer);
	config = configuration();
	if (!is_client())
		endpoint = listen_somewhere(peer);
	for (uint64_t n = 0; n < count; n++)
		open_line(peer, endpoint, config, n);
	say("established");
	for (uint64_t n = 0; is_client() && n < count; n++)
		send_next(n);
	while (!all_done())
		if (!drain_all())
			wait_any();
	for (uint64_t n = 0; n < count; n++)
		end(lines[n].connection);
	for (uint64_t n = 0; n < count; n++)
		delete_connection(lines[n].connection);
	if (endpoint)
		done(rpma_ep_shutdown(&endpoint), "rpma_ep_shutdown");
	if (srq)
		done(rpma_srq_delete(&srq), "rpma_srq_delete");
	done(rpma_conn_cfg_delete(&config), "rpma_conn_cfg_delete");
	done(rpma_mr_dereg(&inbox), "rpma_mr_dereg");
	done(rpma_mr_dereg(&outbox), "rpma_mr_dereg");
	done(rpma_peer_delete(&peer), "rpma_peer_delete");
	return 0;
}
