/*
 * The direction of a path (S6, S8): each end enters it at its own host's configured gateway.
 */
#include "path.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* libphoebus's limit of gateways, and one more to notice a path that is too long. */
#define GATEWAYS_MAX 17

static int same(const char *part, size_t len, const char *own)
{
    return len == strlen(own) && memcmp(part, own, len) == 0;
}

int px_path_enter(char *path, const char *own, char *why, size_t size)
{
    const char *part[GATEWAYS_MAX];
    size_t len[GATEWAYS_MAX], count = 0, at = 0;
    int found = 0;

    if (*own == '\0')
        return 0;
    for (const char *from = path;; from += len[count - 1] + 1) {
        if (count == GATEWAYS_MAX)
            return 0; /* libphoebus reports that the path is too long */
        part[count] = from;
        len[count] = strcspn(from, ",");
        if (!found && same(from, len[count], own)) {
            found = 1;
            at = count;
        }
        if (from[len[count++]] == '\0')
            break;
    }
    if (!found || at == 0)
        return 0;
    if (at != count - 1) {
        snprintf(why, size, "this host's own gateway, %.80s, is inside the path; expected it at one of its ends", own);
        return -1;
    }
    char *turned = malloc(strlen(path) + 1), *to = turned;
    if (turned == NULL) {
        snprintf(why, size, "no memory");
        return -1;
    }
    while (count-- > 0) {
        memcpy(to, part[count], len[count]);
        to += len[count];
        *to++ = count == 0 ? '\0' : ',';
    }
    strcpy(path, turned);
    free(turned);
    return 0;
}
