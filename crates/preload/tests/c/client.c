// A client like many: looks a name up, connects to its addresses in turn, says how that went, and has a word with an echo.
// Arguments: host and port, as often as wanted.
#include "check.h"

int main(int argc, char **argv) {
    for (int i = 1; i + 1 < argc; i += 2) {
        struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
        int error = getaddrinfo(argv[i], argv[i + 1], &hints, &found);
        if (error) {
            printf("%s: %s\n", argv[i], gai_strerror(error));
            continue;
        }
        int fd = socket(found->ai_family, found->ai_socktype, found->ai_protocol);
        if (connect(fd, found->ai_addr, found->ai_addrlen) == 0) {
            printf("connected\n");
            echo(fd);
        } else {
            printf("%s\n", strerror(errno));
        }
        close(fd);
        freeaddrinfo(found);
    }
}
