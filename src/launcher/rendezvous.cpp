#include "launcher/rendezvous.h"

#include <arpa/inet.h>
#include <cerrno>
#include <netinet/in.h>
#include <sys/socket.h>

#include <hasten/base/error.h>

namespace hasten::launcher {

Listener listen_on_loopback(int port) {
  require(port >= 0 && port <= 65535, ErrorCode::kInvalidArgument, "launch", "the main process's port is ",
          port,
          ", but must lie between 0 and 65535. Leave --main-process-port (main_process_port) out to take a "
          "free one.");
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) fail_system(errno, "launch", "cannot open a socket");
  // Connections of an earlier run that still wait for their time-out shall not keep the port.
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));

  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof(address);
  if (::bind(socket.get(), generic, size) != 0 || ::listen(socket.get(), SOMAXCONN) != 0) {
    const int error = errno;
    require(error != EADDRINUSE, ErrorCode::kUnavailable, "launch", "port ", port,
            " of 127.0.0.1 is in use by another program. Choose another with --main-process-port "
            "(main_process_port), or leave it out to take a free one.");
    fail_system(error, "launch", concat("cannot listen on 127.0.0.1, port ", port));
  }
  if (::getsockname(socket.get(), generic, &size) != 0)
    fail_system(errno, "launch", "cannot read the socket's port");
  return {std::move(socket), ntohs(address.sin_port)};
}

config::Process local_process(int rank, int num_processes, const Listener& listener) {
  return {.rank = rank,
          .local_rank = rank,
          .world_size = num_processes,
          .local_world_size = num_processes,
          .main_address = "127.0.0.1",
          .main_port = listener.port,
          .store_descriptor = rank == 0 ? listener.socket.get() : -1,
          .source = "hasten launch"};
}

}  // namespace hasten::launcher
