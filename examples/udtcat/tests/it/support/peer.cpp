// A peer on bare libudt: sends or receives bytes that both ends know, as client, as server, or in a rendezvous.
//
// usage: peer send|receive|send-file|receive-file listen|connect|meet HOST PORT BYTES [MSS] [LOCALPORT]
//        peer send-messages|receive-messages listen|connect HOST PORT COUNT ordered|unordered [TTL]
//
// Exits with 0 if the peer acknowledged everything, or if exactly the expected bytes arrived; with 3 if the
// connection failed first. Message n (from 0) starts with n in 4 bytes, big-endian, and continues with the known
// bytes from 131 n on, to a length of 4 + 7919 n modulo 60000. send-file and receive-file use libudt's file calls
// (sendfile, recvfile) with a file in the current directory, and skip its first bytes. A receiver of messages prints
// the number of each on standard output.
#include <udt/udt.h>

#include <netdb.h>
#include <unistd.h>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

namespace {

// The period is prime, so that a shift by whole packets or buffers is detected.
constexpr size_t PERIOD = 65521;
constexpr size_t PIECE = 4 * PERIOD;

[[noreturn]] void fail(const char* what, int code = 3) {
    fprintf(stderr, "peer: %s: %s\n", what, UDT::getlasterror().getErrorMessage());
    _exit(code);
}

std::vector<char> pattern() {
    std::vector<char> bytes(PERIOD + PIECE);
    uint64_t x = 7;
    for (size_t i = 0; i < PERIOD; i++) {
        x = x * 6364136223846793005ull + 1442695040888963407ull;
        bytes[i] = char(x >> 56);
    }
    for (size_t i = PERIOD; i < bytes.size(); i++) bytes[i] = bytes[i - PERIOD];
    return bytes;
}

// libudt's error for a peer that has not answered (ENOSERVER).
constexpr int NO_ANSWER = 1001;

// Number of connection attempts: libudt allows each three seconds, which a busy machine may exceed.
constexpr int ATTEMPTS = 20;

UDTSOCKET open(const std::string& role, const char* host, const char* port, int mss, const char* local, int kind) {
    addrinfo hints{}, *address = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICHOST;
    if (getaddrinfo(host, port, &hints, &address) != 0) fail("bad address", 2);
    UDTSOCKET socket = UDT::socket(address->ai_family, kind, 0);
    if (mss > 0) UDT::setsockopt(socket, 0, UDT_MSS, &mss, sizeof mss);
    if (role == "listen") {
        if (UDT::bind(socket, address->ai_addr, address->ai_addrlen) == UDT::ERROR) fail("bind");
        if (UDT::listen(socket, 1) == UDT::ERROR) fail("listen");
        sockaddr_storage bound{};
        int length = sizeof bound;
        UDT::getsockname(socket, reinterpret_cast<sockaddr*>(&bound), &length);
        // The port has the same offset in both address families.
        printf("%d\n", ntohs(reinterpret_cast<sockaddr_in*>(&bound)->sin_port));
        fflush(stdout);
        UDTSOCKET accepted = UDT::accept(socket, reinterpret_cast<sockaddr*>(&bound), &length);
        if (accepted == UDT::INVALID_SOCK) fail("accept");
        return accepted;
    }
    if (role == "meet") {
        bool yes = true;
        UDT::setsockopt(socket, 0, UDT_RENDEZVOUS, &yes, sizeof yes);
        addrinfo* here = nullptr;
        if (getaddrinfo(host, local, &hints, &here) != 0) fail("bad local port", 2);
        if (UDT::bind(socket, here->ai_addr, here->ai_addrlen) == UDT::ERROR) fail("bind");
    }
    for (int attempt = 1; UDT::connect(socket, address->ai_addr, address->ai_addrlen) == UDT::ERROR; attempt++) {
        if (role == "meet" || attempt == ATTEMPTS || UDT::getlasterror().getErrorCode() != NO_ANSWER) fail("connect");
        UDT::close(socket);
        socket = UDT::socket(address->ai_family, kind, 0);
        if (mss > 0) UDT::setsockopt(socket, 0, UDT_MSS, &mss, sizeof mss);
    }
    return socket;
}

void send(UDTSOCKET socket, const std::vector<char>& bytes, uint64_t total) {
    for (uint64_t done = 0; done < total;) {
        size_t piece = PIECE < total - done ? PIECE : size_t(total - done);
        int n = UDT::send(socket, bytes.data() + done % PERIOD, int(piece), 0);
        if (n == UDT::ERROR) fail("send");
        done += n;
    }
}

void receive(UDTSOCKET socket, const std::vector<char>& bytes, uint64_t total) {
    std::vector<char> buffer(PIECE);
    for (uint64_t done = 0; done < total;) {
        size_t piece = PIECE < total - done ? PIECE : size_t(total - done);
        int n = UDT::recv(socket, buffer.data(), int(piece), 0);
        if (n == UDT::ERROR) fail("recv");
        if (memcmp(buffer.data(), bytes.data() + done % PERIOD, n) != 0) {
            fprintf(stderr, "peer: wrong bytes after %llu\n", (unsigned long long)done);
            _exit(4);
        }
        done += n;
    }
    // libudt acknowledges the last packets within 10 ms unless it is closed before: wait for the sender to close
    // first.
    char more;
    if (UDT::recv(socket, &more, 1, 0) != UDT::ERROR) {
        fprintf(stderr, "peer: more than %llu bytes\n", (unsigned long long)total);
        _exit(4);
    }
}

// An unlinked file: SKIP bytes that are not sent and then, if requested, the bytes that both ends know.
constexpr int64_t SKIP = 1000;

std::fstream file(const std::vector<char>& bytes, uint64_t total) {
    std::string name = "libudt-peer-" + std::to_string(getpid());
    std::fstream opened(name, std::ios::in | std::ios::out | std::ios::binary | std::ios::trunc);
    unlink(name.c_str());
    opened.write(std::string(SKIP, '-').data(), SKIP);
    for (uint64_t done = 0; done < total; done += PIECE) {
        opened.write(bytes.data() + done % PERIOD, std::streamsize(PIECE < total - done ? PIECE : total - done));
    }
    opened.flush();
    if (!opened) fail("the file", 2);
    return opened;
}

void send_file(UDTSOCKET socket, const std::vector<char>& bytes, uint64_t total) {
    std::fstream from = file(bytes, total);
    int64_t offset = SKIP;
    int64_t sent = UDT::sendfile(socket, from, offset, int64_t(total));
    if (sent == UDT::ERROR) fail("sendfile");
    if (uint64_t(sent) != total || offset != SKIP + sent) fail("sendfile stopped early", 4);
}

void receive_file(UDTSOCKET socket, const std::vector<char>& bytes, uint64_t total) {
    std::fstream to = file(bytes, 0);
    int64_t offset = SKIP;
    int64_t got = UDT::recvfile(socket, to, offset, int64_t(total));
    if (got == UDT::ERROR) fail("recvfile");
    if (uint64_t(got) != total || offset != SKIP + got) fail("recvfile stopped early", 4);
    to.flush();
    to.seekg(SKIP);
    std::vector<char> buffer(PIECE);
    for (uint64_t done = 0; done < total; done += PIECE) {
        size_t piece = PIECE < total - done ? PIECE : size_t(total - done);
        if (!to.read(buffer.data(), std::streamsize(piece)) || memcmp(buffer.data(), bytes.data() + done % PERIOD, piece) != 0) {
            fprintf(stderr, "peer: wrong bytes in the file after %llu\n", (unsigned long long)done);
            _exit(4);
        }
    }
    // As in `receive`: wait for the sender to close.
    char more;
    if (UDT::recv(socket, &more, 1, 0) != UDT::ERROR) fail("more bytes than were to come", 4);
}

std::vector<char> message(const std::vector<char>& bytes, uint32_t n) {
    std::vector<char> out(4 + uint64_t(n) * 7919 % 60000);
    for (int at = 0; at < 4; at++) out[at] = char(n >> (24 - 8 * at));
    memcpy(out.data() + 4, bytes.data() + uint64_t(n) * 131 % PERIOD, out.size() - 4);
    return out;
}

void send_messages(UDTSOCKET socket, const std::vector<char>& bytes, uint32_t count, bool ordered, int ttl) {
    for (uint32_t n = 0; n < count; n++) {
        std::vector<char> next = message(bytes, n);
        if (UDT::sendmsg(socket, next.data(), int(next.size()), ttl, ordered) == UDT::ERROR) fail("sendmsg");
    }
}

// Until the sender closes.
// Ends with the last message, or with the connection. A blocked call of libudt fails when the connection ends, even if it
// has just got a message, or more are there.
void receive_messages(UDTSOCKET socket, const std::vector<char>& bytes, uint32_t total) {
    std::vector<char> buffer(1 << 20);
    for (uint32_t count = 0; count < total; count++) {
        int len = UDT::recvmsg(socket, buffer.data(), int(buffer.size()));
        if (len == UDT::ERROR) len = UDT::recvmsg(socket, buffer.data(), int(buffer.size()));
        if (len == UDT::ERROR) return;
        const unsigned char* head = reinterpret_cast<unsigned char*>(buffer.data());
        uint32_t n = uint32_t(head[0]) << 24 | uint32_t(head[1]) << 16 | uint32_t(head[2]) << 8 | head[3];
        std::vector<char> expected = message(bytes, n);
        if (size_t(len) != expected.size() || memcmp(buffer.data(), expected.data(), len) != 0) {
            fprintf(stderr, "peer: message %u of %d bytes is not what it was\n", n, len);
            _exit(4);
        }
        printf("%u\n", n);
    }
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 6) return 2;
    std::string what = argv[1], role = argv[2];
    uint64_t total = strtoull(argv[5], nullptr, 10);
    bool messages = what.find("-messages") != std::string::npos;
    int mss = argc > 6 && !messages ? atoi(argv[6]) : 0;
    UDT::startup();
    int kind = messages ? SOCK_DGRAM : SOCK_STREAM;
    UDTSOCKET socket = open(role, argv[3], argv[4], mss, argc > 7 ? argv[7] : "0", kind);
    if (what == "send-messages") {
        bool ordered = argc > 6 && std::string(argv[6]) == "ordered";
        send_messages(socket, pattern(), uint32_t(total), ordered, argc > 7 ? atoi(argv[7]) : -1);
    } else if (what == "receive-messages") {
        receive_messages(socket, pattern(), uint32_t(total));
        fflush(stdout);
    } else if (what == "send-file") {
        send_file(socket, pattern(), total);
    } else if (what == "receive-file") {
        receive_file(socket, pattern(), total);
    } else if (what == "send") {
        send(socket, pattern(), total);
    } else {
        receive(socket, pattern(), total);
    }
    // Lingers until everything sent is acknowledged.
    UDT::close(socket);
    UDT::cleanup();
    return 0;
}
