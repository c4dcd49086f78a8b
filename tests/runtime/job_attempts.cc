#include "tests/runtime/job_attempts.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>
#include <utility>

#include "runtime/job_environment.h"
#include "runtime/rendezvous/server.h"
#include "shared/base/error.h"
#include "shared/base/text.h"

namespace cp::testing {
namespace {

template <class Condition>
void await(const Condition& condition) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition() && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

bool is_there(const runtime::RankStatus& status) { return status.state == runtime::RankState::joined; }

}  // namespace

JobAttempts::JobAttempts(Rank rank, int ranks, std::string directory, std::string backend)
    : rank_(rank), ranks_(ranks), directory_(std::move(directory)), backend_(std::move(backend)) {}

std::string JobAttempts::attempt(const std::function<void(runtime::Job&)>& work) {
  runtime::JobEnvironment environment;
  environment.rank = environment.local_rank = rank_, environment.world_size = ranks_;
  environment.token = "0123456789abcdef0123456789abcdef";
  environment.backend = backend_, environment.allow_shared_gpu = true;
  const std::string port = str(directory_, "/port ", attempts_++);
  std::unique_ptr<runtime::RendezvousServer> server;
  if (rank_ == 0) {
    server = std::make_unique<runtime::RendezvousServer>(
        runtime::ServerOptions{.world_size = ranks_, .token = environment.token});
    std::ofstream(port + ".new") << server->port();
    std::filesystem::rename(port + ".new", port);
  }
  await([&] { return std::filesystem::exists(port); });
  std::ifstream(port) >> environment.port;
  for (const std::string& variable : runtime::variables_of(environment)) {
    const std::size_t equals = variable.find('=');
    setenv(variable.substr(0, equals).c_str(), variable.substr(equals + 1).c_str(), 1);
  }
  std::string thrown;
  try {
    runtime::Job job;
    work(job);
  } catch (const Error& error) {
    thrown = error.what();
  }
  if (server) await([&] { return std::ranges::none_of(server->ranks(), is_there); });
  return thrown;
}

}  // namespace cp::testing
