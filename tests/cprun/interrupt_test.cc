// Ctrl-C at a process of cprun itself, not at its launcher, which the launcher's tests have.
#include <csignal>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/text.h"
#include "tests/cli/cpsim_process.h"
#include "tests/cprun/run_program.h"
#include "tests/cprun/scenario_file.h"

namespace cp::testing {
namespace {

// A rendezvous that lets ranks connect, and then says nothing.
class SilentRendezvous {
 public:
  SilentRendezvous() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener_, 1), 0);
    EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
  }
  ~SilentRendezvous() { close(listener_); }
  SilentRendezvous(const SilentRendezvous&) = delete;
  SilentRendezvous& operator=(const SilentRendezvous&) = delete;

  std::uint16_t port() const { return port_; }
  bool somebody_came() const {
    pollfd wanted{listener_, POLLIN, 0};
    return poll(&wanted, 1, 0) == 1;
  }

 private:
  int listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  std::uint16_t port_ = 0;
};

// Its launcher says it.
TEST(CprunInterrupt, ARankDiesOfTheSignalWithoutAWord) {
  const cli::TemporaryFolder folder;
  for (const int signal : {SIGINT, SIGTERM}) {
    const SilentRendezvous rendezvous;
    Program rank({built("cprun"), "--as-rank", ring(folder)},
                 {"RANK=0", "WORLD_SIZE=4", "MASTER_ADDR=127.0.0.1", str("MASTER_PORT=", rendezvous.port()),
                  "CPRUN_TOKEN=0123456789abcdef", "CPRUN_TIMEOUT_MS=600000"});
    ASSERT_TRUE(within(std::chrono::seconds(60), [&] { return rendezvous.somebody_came(); }))
        << rank.read("err");
    rank.signal(signal);
    const ProgramEnd end = rank.finish();
    EXPECT_EQ(end.exit_code, 128 + signal);
    EXPECT_EQ(end.err, "");
  }
}

// What the others do because of it, nobody needs to read.
TEST(CprunInterrupt, AFailureIsToldInTheLaunchersWordsAlone) {
  const cli::TemporaryFolder folder;
  const std::string path = scenario(
      folder,
      R"(run { mesh: "cp=3" strategy: "ring" seq_len: 12000 q_heads: 4 kv_heads: 4 head_dim: 64 backward: true })");
  Program job({built("cprun"), path});
  std::vector<pid_t> ranks;
  ASSERT_TRUE(within(std::chrono::seconds(60), [&] {
    ranks = job.children("cprun");
    return ranks.size() == 3;
  }));
  kill(ranks[1], SIGTERM);
  const ProgramEnd end = job.finish();
  EXPECT_EQ(end.exit_code, 128 + SIGTERM);
  EXPECT_THAT(end.err, ::testing::HasSubstr(str("(pid ", ranks[1], ") was killed by SIGTERM")));
  EXPECT_THAT(end.err, ::testing::Not(::testing::HasSubstr("interrupted")));
  EXPECT_THAT(end.err, ::testing::Not(::testing::ContainsRegex("\\[rank [0-9]\\] \n")));
  EXPECT_THAT(end.err, ::testing::Not(::testing::ContainsRegex("\\[rank [0-9]\\] [^\n]*SIGTERM")));
}

}  // namespace
}  // namespace cp::testing
