/* Queries a port into a struct filled with 0xaa and prints every byte of it in hexadecimal.
 * usage: port_attributes DEVICE PORT */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
	struct ibv_device **list;
	struct ibv_port_attr attributes;
	const unsigned char *bytes = (const unsigned char *)&attributes;
	int i, ret;

	if (argc != 3)
		return 2;
	list = ibv_get_device_list(NULL);
	for (i = 0; list && list[i]; i++) {
		struct ibv_context *context;

		if (strcmp(ibv_get_device_name(list[i]), argv[1]))
			continue;
		context = ibv_open_device(list[i]);
		if (!context)
			return 3;
		memset(&attributes, 0xaa, sizeof(attributes));
		ret = ibv_query_port(context, (uint8_t)atoi(argv[2]), &attributes);
		if (ret) {
			fprintf(stderr, "ibv_query_port: %s\n", strerror(ret));
			return 4;
		}
		for (size_t n = 0; n < sizeof(attributes); n++)
			printf("%02x", bytes[n]);
		printf("\n");
		return 0;
	}
	fprintf(stderr, "no device %s\n", argv[1]);
	return 5;
}
