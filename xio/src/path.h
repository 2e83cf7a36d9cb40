/*
 * The direction of a path. Both ends of a transfer are given the same path, and either end may connect.
 */
#ifndef PX_PATH_H
#define PX_PATH_H

#include <stddef.h>

/*
 * Reverses `path`, gateways separated by commas, if it ends at `own`. `own` is this host's configured gateway, "" if
 * there is none. Both are in libphoebus's notation. Any other path stays as it is. If `own` is inside the path, the
 * direction to the other end is unknown: returns -1, and `why` says so.
 */
int px_path_enter(char *path, const char *own, char *why, size_t size);

#endif
