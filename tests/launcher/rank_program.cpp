// What a rank may do that a shell script cannot: rank_program throw | store.
#include <arpa/inet.h>
#include <cstdio>
#include <netinet/in.h>
#include <stdexcept>
#include <string>
#include <sys/socket.h>
#include <unistd.h>

#include <hasten/config/process.h>

namespace {

/// Rank 0 serves on the inherited socket; the others connect to the address they were given.
int meet(const hasten::config::Process& process) {
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  if (process.rank == 0) {
    if (getsockname(process.store_descriptor, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 1;
    if (ntohl(address.sin_addr.s_addr) != INADDR_LOOPBACK || ntohs(address.sin_port) != process.main_port)
      return 1;
    for (int i = 1; i < process.world_size; ++i) {
      const int connection = accept(process.store_descriptor, nullptr, nullptr);
      if (connection < 0 || write(connection, "met", 3) != 3) return 1;
      close(connection);
    }
    return 0;
  }
  if (process.store_descriptor != -1) return 1;
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(process.main_port));
  inet_pton(AF_INET, process.main_address.c_str(), &address.sin_addr);
  const int connection = socket(AF_INET, SOCK_STREAM, 0);
  char answer[4] = {};
  if (connect(connection, reinterpret_cast<sockaddr*>(&address), size) != 0) return 1;
  if (recv(connection, answer, 3, MSG_WAITALL) != 3) return 1;
  std::puts(answer);
  return 0;
}

}  // namespace

int main(int, char** argv) {
  const auto process = hasten::config::process_from_environment();
  if (argv[1] == std::string("store")) return meet(process);
  if (process.rank == 1) throw std::runtime_error("boom");
  pause();
}
