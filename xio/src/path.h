/*
 * A path has no direction: the same one is given to both ends of a transfer, and either may be the one that connects.
 */
#ifndef PX_PATH_H
#define PX_PATH_H

#include <stddef.h>

/*
 * Turns `path`, gateways separated by commas, so that it begins at `own`, the gateway that this host is configured with ("" if with
 * none), both as libphoebus writes them. A path that neither begins nor ends there stays as it is, unless `own` stands inside
 * it: then the way to the other end is not known, -1 is returned, and `why` says so.
 */
int px_path_enter(char *path, const char *own, char *why, size_t size);

#endif
