// The Gloo device under the conformance suite: four processes over loopback.
#include <gtest/gtest.h>

#ifdef CP_HAVE_GLOO
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/gloo/gloo_device.h"
#include "shared/base/error.h"
#include "tests/conformance/device_suite.h"
#include "tests/runtime/processes.h"
#endif

namespace cp::conformance {
namespace {

#ifndef CP_HAVE_GLOO

TEST(GlooConformance, IsTestedWhereGlooWasFound) { GTEST_SKIP() << "built without Gloo (libgloo-dev)"; }

#else

// ---- messages between the processes of a test ---------------------------------------------------------------------------

void write_all(int pipe, const void* data, std::size_t size) {
  const char* bytes = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t n = write(pipe, bytes, size);
    if (n <= 0) throw std::runtime_error("another process of the test has ended");
    bytes += n, size -= static_cast<std::size_t>(n);
  }
}

void read_all(int pipe, void* data, std::size_t size) {
  char* bytes = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t n = read(pipe, bytes, size);
    if (n <= 0) throw std::runtime_error("another process of the test has ended");
    bytes += n, size -= static_cast<std::size_t>(n);
  }
}

void write_text(int pipe, const std::string& text) {
  const std::size_t size = text.size();
  write_all(pipe, &size, sizeof size);
  write_all(pipe, text.data(), size);
}

std::string read_text(int pipe) {
  std::size_t size = 0;
  read_all(pipe, &size, sizeof size);
  std::string text(size, '\0');
  read_all(pipe, text.data(), size);
  return text;
}

std::string to_text(const Contents& contents) {
  std::string text;
  const auto add = [&](const void* data, std::size_t size) {
    text.append(static_cast<const char*>(data), size);
  };
  for (const auto& [name, values] : contents) {
    for (const std::size_t size : {name.size(), values.size()}) add(&size, sizeof size);
    add(name.data(), name.size());
    add(values.data(), values.size() * sizeof(double));
  }
  return text;
}

Contents to_contents(const std::string& text) {
  Contents contents;
  std::size_t at = 0;
  const auto take = [&](void* data, std::size_t size) {
    if (size > 0) std::memcpy(data, text.data() + at, size);
    at += size;
  };
  while (at < text.size()) {
    std::array<std::size_t, 2> sizes{};
    take(sizes.data(), sizeof sizes);
    std::string name(sizes[0], '\0');
    take(name.data(), name.size());
    Values& values = contents[name];
    values.resize(sizes[1]);
    take(values.data(), values.size() * sizeof(double));
  }
  return contents;
}

// ---- the world ----------------------------------------------------------------------------------------------------------

// Made, it forks: this process goes on as rank 0 and its children as the others, all with the same test. Destroyed, it ends the
// children, and fails the test where one of them failed.
class GlooWorld final : public DeviceWorld {
 public:
  explicit GlooWorld(int world_size) : traces_(static_cast<std::size_t>(world_size)) {
    std::fflush(nullptr);  // or children would print again what waits
    for (Rank rank = 1; rank < world_size && rank_ == 0; ++rank) fork_rank(rank);
    for (Rank rank = 0; rank < world_size; ++rank) traces_[static_cast<std::size_t>(rank)].rank = rank;
    device_ = std::make_unique<runtime::GlooDevice>(runtime::GlooOptions{
        .rank = rank_, .store_directory = store_.path(), .timeout = std::chrono::seconds(60)});
  }

  ~GlooWorld() override {
    device_.reset();
    if (rank_ != 0) {
      std::fflush(nullptr);
      _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    for (const Peer& peer : peers_) {
      for (const int pipe : {peer.in, peer.out}) close(pipe);
    }
    for (const Peer& peer : peers_) {
      int status = 0;
      waitpid(peer.pid, &status, 0);
      if (status != 0) ADD_FAILURE() << "rank " << peer.rank << " failed (above) with status " << status;
    }
  }

  void run(const std::function<void(Rank, Device&)>& body) override {
    std::string error;
    try {
      body(rank_, *device_);
    } catch (const std::exception& caught) {
      error = str("rank ", rank_, ": ", caught.what());
    }
    RankTrace& trace = traces_[static_cast<std::size_t>(rank_)];
    for (OpRecord& record : device_->take_observed()) trace.observed.push_back(std::move(record));
    for (const std::string& other : gather(error)) {
      if (!other.empty()) throw std::runtime_error(other);
    }
  }

  void share(std::vector<Contents>& by_rank) override {
    const std::vector<std::string> all = gather(to_text(by_rank[static_cast<std::size_t>(rank_)]));
    for (std::size_t rank = 0; rank < all.size(); ++rank) by_rank[rank] = to_contents(all[rank]);
  }

  std::vector<RankTrace>& traces() override { return traces_; }
  void clear_traces() override {
    for (RankTrace& trace : traces_) trace.issued.clear(), trace.observed.clear();
  }

 private:
  struct Peer {
    Rank rank = 0;
    pid_t pid = -1;
    int in = -1, out = -1;
  };

  void fork_rank(Rank rank) {
    int down[2], up[2];
    CP_INVARIANT(pipe(down) == 0 && pipe(up) == 0, "pipe");
    const pid_t pid = fork();
    CP_INVARIANT(pid >= 0, "fork");
    if (pid == 0) {
      // Those of its sisters as well: nobody waits for a pipe whose owner has gone.
      for (const Peer& peer : peers_) close(peer.in), close(peer.out);
      close(down[1]), close(up[0]);
      rank_ = rank;
      peers_ = {{0, -1, down[0], up[1]}};
      return;
    }
    close(down[0]), close(up[1]);
    peers_.push_back({rank, pid, up[0], down[1]});
  }

  // Every process's text, by rank.
  std::vector<std::string> gather(const std::string& own) {
    std::vector<std::string> all(traces_.size());
    if (rank_ != 0) {
      write_text(peers_.front().out, own);
      for (std::string& text : all) text = read_text(peers_.front().in);
      return all;
    }
    all.front() = own;
    for (const Peer& peer : peers_) all[static_cast<std::size_t>(peer.rank)] = read_text(peer.in);
    for (const Peer& peer : peers_) {
      for (const std::string& text : all) write_text(peer.out, text);
    }
    return all;
  }

  const cp::testing::TemporaryDirectory store_;
  Rank rank_ = 0;
  std::vector<Peer> peers_;  // of rank 0: all others; of the others: rank 0
  std::vector<RankTrace> traces_;
  std::unique_ptr<runtime::GlooDevice> device_;
};

DeviceFactory gloo_factory() {
  return {.name = "Processes", .target = host_target(), .host_memory = true, .make = [](int world_size) {
            return std::make_unique<GlooWorld>(world_size);
          }};
}

INSTANTIATE_TEST_SUITE_P(Gloo, DeviceConformance, ::testing::Values(gloo_factory()), factory_name);

#endif

}  // namespace
}  // namespace cp::conformance
