// A flow over bare libudt, for `phoebus bench`: the reference for our own UDT.
//
// usage: libudt receive HOST PORT | libudt send HOST PORT SECONDS BITS_PER_SECOND
//
// Both print one line of JSON at their end; `receive` first prints another one, with its port. A rate of 0 is no limit. Buffers
// have room for 1 Gbit/s at 400 ms, so that they do not limit the rate.
#include <udt/udt.h>

#include <netdb.h>
#include <sys/resource.h>
#include <unistd.h>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr int PIECE = 256 << 10;
using Clock = std::chrono::steady_clock;

[[noreturn]] void fail(const char* what) {
    fprintf(stderr, "%s: %s\n", what, UDT::getlasterror().getErrorMessage());
    _exit(1);
}

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

void report(uint64_t bytes, double seconds) {
    rusage used{};
    getrusage(RUSAGE_SELF, &used);
    double cpu = double(used.ru_utime.tv_sec + used.ru_stime.tv_sec) + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
    printf("{\"bytes\": %llu, \"seconds\": %.6f, \"cpu\": %.6f, \"memory\": %lld}\n", (unsigned long long)bytes, seconds, cpu,
           (long long)used.ru_maxrss * 1024);
    fflush(stdout);
}

UDTSOCKET open(const addrinfo* address, long long bits_per_second) {
    UDTSOCKET socket = UDT::socket(address->ai_family, SOCK_STREAM, 0);
    int window = 36000, buffer = 48 << 20, udp = 16 << 20;
    int64_t rate = bits_per_second / 8;
    bool bad = UDT::setsockopt(socket, 0, UDT_FC, &window, sizeof window) ||
               UDT::setsockopt(socket, 0, UDT_SNDBUF, &buffer, sizeof buffer) ||
               UDT::setsockopt(socket, 0, UDT_RCVBUF, &buffer, sizeof buffer) ||
               UDT::setsockopt(socket, 0, UDP_RCVBUF, &udp, sizeof udp) ||
               (rate > 0 && UDT::setsockopt(socket, 0, UDT_MAXBW, &rate, sizeof rate));
    if (bad) fail("settings");
    return socket;
}

void receive(const addrinfo* address) {
    UDTSOCKET listener = open(address, 0);
    if (UDT::bind(listener, address->ai_addr, int(address->ai_addrlen)) == UDT::ERROR) fail("bind");
    if (UDT::listen(listener, 1) == UDT::ERROR) fail("listen");
    sockaddr_storage bound{};
    int length = sizeof bound;
    UDT::getsockname(listener, reinterpret_cast<sockaddr*>(&bound), &length);
    // The port has the same offset in both address families.
    printf("%d\n", ntohs(reinterpret_cast<sockaddr_in*>(&bound)->sin_port));
    fflush(stdout);
    UDTSOCKET socket = UDT::accept(listener, reinterpret_cast<sockaddr*>(&bound), &length);
    if (socket == UDT::INVALID_SOCK) fail("accept");
    std::vector<char> buffer(PIECE);
    uint64_t bytes = 0;
    double seconds = 0;
    // From the sender's connect to the last byte, not to the end of the connection, which looks the same as a failure.
    for (auto start = Clock::now();;) {
        int n = UDT::recv(socket, buffer.data(), PIECE, 0);
        if (n == UDT::ERROR) break;
        bytes += uint64_t(n);
        seconds = since(start);
    }
    report(bytes, seconds);
    UDT::close(socket);
}

void send(const addrinfo* address, double seconds, long long rate) {
    UDTSOCKET socket = open(address, rate);
    if (UDT::connect(socket, address->ai_addr, int(address->ai_addrlen)) == UDT::ERROR) fail("connect");
    std::vector<char> buffer(PIECE, 'Z');
    uint64_t bytes = 0;
    auto start = Clock::now();
    while (since(start) < seconds) {
        int n = UDT::send(socket, buffer.data(), PIECE, 0);
        if (n == UDT::ERROR) fail("send");
        bytes += uint64_t(n);
    }
    for (int left = 1, length = sizeof left; left > 0; usleep(1000))
        if (UDT::getsockopt(socket, 0, UDT_SNDDATA, &left, &length) == UDT::ERROR) fail("end");
    report(bytes, since(start));
    UDT::close(socket);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 4) return 2;
    addrinfo hints{}, *address = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICHOST;
    if (getaddrinfo(argv[2], argv[3], &hints, &address) != 0) return 2;
    UDT::startup();
    if (std::string(argv[1]) == "receive") {
        receive(address);
    } else if (argc > 5) {
        send(address, atof(argv[4]), atoll(argv[5]));
    } else {
        return 2;
    }
    UDT::cleanup();
    return 0;
}
