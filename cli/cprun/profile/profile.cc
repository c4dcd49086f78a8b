#include "cli/cprun/profile/profile.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "cli/common/interrupt.h"
#include "cli/cprun/job/rank.h"
#include "cli/cprun/job/trace_output.h"
#include "cli/cprun/profile/device_profile.h"
#include "cli/cprun/profile/profile_measure.h"
#include "cli/cprun/profile/software_profile.h"
#include "runtime/gpu_clocks.h"
#include "runtime/joined_device.h"
#include "runtime/nccl/nccl_backend.h"
#include "runtime/rank_gpu.h"
#include "runtime/rendezvous/client.h"
#include "runtime/this_host.h"
#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/base/utc.h"
#include "shared/plan/session.h"
#include "sim/base/number_text.h"
#include "sim/cost/cluster/read_cluster.h"

namespace cp::cli {
namespace {

using runtime::kAsLongAsItTakes;
using runtime::RendezvousClient;

constexpr std::pair<std::string_view, ProfileSize> kSizes[] = {
    {"tiny", ProfileSize::tiny}, {"quick", ProfileSize::quick}, {"whole", ProfileSize::whole}};

// The path of a file beside "mine.txtpb": "mine.csv", "mine.software.txtpb".
std::string beside(const std::string& out, const char* extension) {
  return std::filesystem::path(out).replace_extension(extension).string();
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.close();
  if (!out) throw InvalidInput(str("cannot write ", path, "; use --output with a path that can be written"));
}

std::string today() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return utc_text(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count()).substr(0, 10);
}

class ProfileRank {
 public:
  ProfileRank(const ProfileOptions& options, const runtime::JobEnvironment& job,
              std::shared_ptr<RendezvousClient> client)
      : options_(options), job_(job), client_(std::move(client)) {}

  void run() {
    const InterruptScope scope;
    look_around();
    const ProfileGrid grid = profile_grid(options_.grid, machine_.world);
    for (const ProfilePoint& point : grid.points) {
      if (all_stop()) break;
      measure(point, grid.points.size());
    }
    if (!all_stop()) read_clocks();
    if (job_.rank == 0) write();
    client_->barrier("written", kAsLongAsItTakes);
  }

 private:
  void look_around() {
    if (runtime::find_backend(job_.backend).on_gpus) gpu_ = runtime::rank_gpu(job_, *client_);
    if (gpu_ && !gpu_->targets_differ.empty()) {
      throw InvalidInput(str("a profile describes one kind of GPU, but the ranks have ", gpu_->targets_differ,
                             "; profile each kind by itself"));
    }
    machine_.gpu = gpu_ ? gpu_->name : "CPU";
    machine_.date = today();
    machine_.libraries = runtime::library_versions(job_.backend);
    std::set<std::string> hosts;
    const std::string own = str(runtime::host_name(), " ", runtime::boot_id());  // machines may have one name
    for (std::string& host : client_->all_gather("host", own, kAsLongAsItTakes))
      hosts.insert(std::move(host));
    const int machines = job_.world_size % std::ssize(hosts) == 0 ? static_cast<int>(hosts.size()) : 1;
    machine_.world = {job_.world_size, machines, job_.allow_shared_gpu};
    const std::string preset = options_.cluster.empty() ? preset_of_gpu(machine_.gpu) : options_.cluster;
    if (preset.empty()) {
      throw InvalidInput(str(
          "no preset has the GPU ", machine_.gpu,
          "; choose the cluster that gives the figures that are not measured, for example --cluster ",
          sim::cluster_names().front(), ": use one of ", join(sim::cluster_names(), ", "), ", or a file"));
    }
    base_ = sim::find_cluster(preset);
  }

  bool all_stop() {
    const std::vector<std::string> all =
        client_->all_gather("stop", InterruptScope::interrupted() ? "stop" : "", kAsLongAsItTakes);
    return std::find(all.begin(), all.end(), "stop") != all.end();
  }

  // Communicators keep the channels that their device was made with, so another number needs another device.
  runtime::JoinedDevice& device(int channels) {
    if (!device_ || channels != channels_) {
      device_.reset();
      client_->barrier("device", kAsLongAsItTakes);
      runtime::JoinedDeviceOptions options;
      auto nccl = std::make_shared<runtime::NcclBackendOptions>();
      nccl->gpu = gpu_;
      if (channels > 0) nccl->communicators.min_ctas = nccl->communicators.max_ctas = channels;
      options.own = std::move(nccl);
      options.name = str("profile ", devices_++, "/");
      device_.emplace(job_, client_, std::move(options));
      channels_ = channels;
    }
    return *device_;
  }

  void measure(const ProfilePoint& point, std::size_t points) {
    const auto* beside = std::get_if<BesidePoint>(&point);
    ProfileMeasure measure(
        device(beside == nullptr ? 0 : beside->channels), machine_.world, options_.grid,
        [this](const std::string& own) { return client_->all_gather("times", own, kAsLongAsItTakes); });
    ++measured_;
    const std::optional<ProfileRow> row = measure.row(point);
    if (job_.rank == 0) {
      const std::string what = row ? fmt::format("{}, the median of {}, half of them within {:.2g} %",
                                                 sim::human_seconds(row->time.median_us * 1e-6),
                                                 row->time.samples, 100 * row->time.relative())
                                   : "no result, because the two did not overlap";
      fmt::print("{} of {}: {}: {}\n", measured_, points, name(point), what);
      std::fflush(stdout);
    }
    if (row) rows_.push_back(*row);
  }

  // Reads the clocks of this rank's GPU while products run. All ranks make the device, also those whose GPU
  // has no clocks to read.
  void read_clocks() {
    if (!gpu_ || options_.clock_seconds <= 0) return;
    runtime::JoinedDevice& own = device(0);
    if (!runtime::gpu_clocks(gpu_->address) || (machine_.world.shared_gpu && job_.rank != 0)) return;
    // Chosen: a product of 8192 is large enough to fill a GPU, and a hundred of them are still running when
    // the clocks are read at the end. The rounds before only warm the GPU up.
    const std::int64_t n = options_.grid == ProfileSize::tiny ? 64 : 8192;
    const ProfilePoint product = ProductPoint{n, n, n};
    ProfilePlanOptions options;
    options.iterations = 100;
    const Plan plan = profile_plan(product, job_.rank, machine_.world, own.target(), options);
    PlanSession session(own, plan);
    upload_data(session);
    const auto begin = std::chrono::steady_clock::now();
    const auto elapsed = [&] {
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    };
    while (elapsed() < options_.clock_seconds && !InterruptScope::interrupted()) {
      session.run();
      own.take_times();
    }
    std::optional<runtime::GpuClocks> clocks;
    session.run({.issued = [&] { clocks = runtime::gpu_clocks(gpu_->address); }});  // while it runs
    if (!clocks) return;
    machine_.sustained_clock_mhz = clocks->sm_mhz, machine_.max_clock_mhz = clocks->max_sm_mhz;
    machine_.power_w = clocks->power_w, machine_.seconds = elapsed();
    machine_.libraries["driver"] = clocks->driver;
  }

  void write() const {
    if (rows_.empty()) {
      fmt::print("nothing was measured, so no file is written\n");
      return;
    }
    const std::string csv = beside(options_.out, ".csv"), software = beside(options_.out, ".software.txtpb");
    write_file(csv, profile_csv(rows_));
    const std::string stem = std::filesystem::path(options_.out).stem().string();
    const DeviceProfile profile = device_profile(base_, stem, rows_, machine_);
    write_file(options_.out, profile.text);
    for (const std::string& note : profile.notes) fmt::print("{}\n", note);
    fmt::print("wrote {} ({} curves) and {} ({} points)\n", options_.out, profile.calibration.fits.size(),
               csv, rows_.size());
    if (const auto measured = measured_software(stem, rows_, machine_)) {
      write_file(software, measured->text);
      fmt::print("wrote {} ({}), for --software\n", software, join(measured->measured, ", "));
    }
    std::fflush(stdout);
  }

  const ProfileOptions& options_;
  const runtime::JobEnvironment& job_;
  std::shared_ptr<RendezvousClient> client_;
  std::optional<runtime::RankGpu> gpu_;
  ProfileMachine machine_;
  sim::Cluster base_;
  int channels_ = 0, devices_ = 0, measured_ = 0;
  std::optional<runtime::JoinedDevice> device_;
  std::vector<ProfileRow> rows_;
};

}  // namespace

ProfileSize parse_profile_size(const std::string& text) {
  for (const auto& [known, size] : kSizes) {
    if (text == known) return size;
  }
  throw InvalidInput(str("--grid ", text, " is unknown; use tiny, quick or whole"));
}

void check(const ProfileOptions& options) {
  if (!options.out.ends_with(".txtpb")) {
    throw InvalidInput(str("--output ", options.out,
                           " does not end in .txtpb, so that no command would read it; use ", options.out,
                           ".txtpb"));
  }
  for (const std::string& path :
       {options.out, beside(options.out, ".csv"), beside(options.out, ".software.txtpb")})
    require_writable("--output", path);
  if (!options.cluster.empty()) sim::find_cluster(options.cluster);
}

std::vector<std::string> profile_arguments(const ProfileOptions& options) {
  std::string grid;
  for (const auto& [known, size] : kSizes) {
    if (size == options.grid) grid = known;
  }
  std::vector<std::string> arguments = {
      "profile", "--as-rank", "--output",        options.out,
      "--grid",  grid,        "--clock-seconds", str(options.clock_seconds)};
  if (!options.cluster.empty()) arguments.insert(arguments.end(), {"--cluster", options.cluster});
  return arguments;
}

int run_profile_rank(const ProfileOptions& options, const runtime::JobEnvironment& job) {
  return run_in_job(job, [&](const std::shared_ptr<RendezvousClient>& client) {
    ProfileRank(options, job, client).run();
    return std::string();
  });
}

}  // namespace cp::cli
