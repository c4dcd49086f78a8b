#include "tests/conformance/process_world.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <sys/wait.h>
#include <unistd.h>

#include "shared/base/error.h"

namespace cp::conformance {
namespace {

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

}  // namespace

ProcessWorld::ProcessWorld(int world_size, MakeDevice make)
    : make_(std::move(make)), traces_(static_cast<std::size_t>(world_size)) {
  std::fflush(nullptr);  // or children would print again what waits
  for (Rank rank = 0; rank < world_size && rank_ == kNone; ++rank) fork_rank(rank);
  for (Rank rank = 0; rank < world_size; ++rank) traces_[static_cast<std::size_t>(rank)].rank = rank;
  if (rank_ != kNone) device_ = make_(rank_);
}

ProcessWorld::~ProcessWorld() {
  device_.reset();
  if (rank_ != kNone) {
    std::fflush(nullptr);
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  for (const Peer& peer : peers_) {
    for (const int pipe : {peer.in, peer.out}) close(pipe);
  }
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    int status = 0;
    waitpid(peers_[rank].pid, &status, 0);
    if (status != 0) ADD_FAILURE() << "rank " << rank << " failed (above) with status " << status;
  }
}

void ProcessWorld::run(const std::function<void(Rank, Device&)>& body) {
  std::string error;
  if (rank_ != kNone) {
    try {
      body(rank_, *device_);
    } catch (const std::exception& caught) {
      error = str("rank ", rank_, ": ", caught.what());
    }
    RankTrace& trace = traces_[static_cast<std::size_t>(rank_)];
    for (OpRecord& record : device_->take_observed()) trace.observed.push_back(std::move(record));
  }
  for (const std::string& other : gather(error)) {
    if (!other.empty()) throw std::runtime_error(other);
  }
}

void ProcessWorld::share(std::vector<Contents>& by_rank) {
  const std::vector<std::string> all =
      gather(rank_ == kNone ? "" : to_text(by_rank[static_cast<std::size_t>(rank_)]));
  for (std::size_t rank = 0; rank < all.size(); ++rank) by_rank[rank] = to_contents(all[rank]);
}

void ProcessWorld::clear_traces() {
  for (RankTrace& trace : traces_) trace.issued.clear(), trace.observed.clear();
}

void ProcessWorld::fork_rank(Rank rank) {
  int down[2], up[2];
  CP_INVARIANT(pipe(down) == 0 && pipe(up) == 0, "pipe");
  const pid_t pid = fork();
  CP_INVARIANT(pid >= 0, "fork");
  if (pid == 0) {
    // Those of its sisters as well: nobody waits for a pipe whose owner has gone.
    for (const Peer& peer : peers_) close(peer.in), close(peer.out);
    close(down[1]), close(up[0]);
    rank_ = rank;
    peers_ = {{-1, down[0], up[1]}};
    return;
  }
  close(down[0]), close(up[1]);
  peers_.push_back({pid, up[0], down[1]});
}

// Every rank's text, by rank.
std::vector<std::string> ProcessWorld::gather(const std::string& own) {
  std::vector<std::string> all(traces_.size());
  if (rank_ != kNone) {
    write_text(peers_.front().out, own);
    for (std::string& text : all) text = read_text(peers_.front().in);
    return all;
  }
  for (std::size_t rank = 0; rank < all.size(); ++rank) all[rank] = read_text(peers_[rank].in);
  for (const Peer& peer : peers_) {
    for (const std::string& text : all) write_text(peer.out, text);
  }
  return all;
}

}  // namespace cp::conformance
