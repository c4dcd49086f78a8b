#include "cli/cprun/profile/software_profile.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "cli/cprun/profile/channel_choice.h"
#include "shared/base/text.h"
#include "sim/cost/cluster/read_software.h"

namespace cp::cli {
namespace {

// A line for each number of channels: "#   beside each other, channels 8, they keep of their speed: attention
// forward 0.95, products 0.97, collectives 0.8".
std::string comments_of(const std::map<int, KeptSpeeds>& kept) {
  std::string text;
  for (const auto& [channels, of] : kept) {
    std::vector<std::string> shares;
    const std::array<std::pair<const char*, const std::vector<double>*>, 4> kinds = {
        {{"attention forward", &of.attention_forward},
         {"attention backward", &of.attention_backward},
         {"products", &of.products},
         {"collectives", &of.collectives}}};
    for (const auto& [kind, values] : kinds) {
      if (!values->empty()) shares.push_back(fmt::format("{} {:.3g}", kind, summary_of(*values).median));
    }
    if (shares.empty()) continue;
    text += str("#   beside each other, ",
                channels == 0 ? "channels as the library chooses" : str("channels ", channels),
                ", they keep of their speed: ", join(shares, ", "), "\n");
  }
  return text;
}

// The times of one kind of kernel, over the time of a copy that moves as many bytes.
std::vector<double> passes_of(const std::vector<ProfileRow>& rows, MemoryPoint::Kernel kernel) {
  std::map<std::int64_t, double> copies;  // us a byte
  for (const auto& [point, row] : rows_of<MemoryPoint>(rows)) {
    if (point->kernel == MemoryPoint::Kernel::copy)
      copies[point->bytes] = row->time.median_us / static_cast<double>(moved_bytes(*point));
  }
  std::vector<double> passes;
  for (const auto& [point, row] : rows_of<MemoryPoint>(rows)) {
    const auto copy = copies.find(point->bytes);
    if (point->kernel != kernel || copy == copies.end()) continue;
    passes.push_back(row->time.median_us / static_cast<double>(moved_bytes(*point)) / copy->second);
  }
  return passes;
}

constexpr double kMostIssueUs = 1e4;  // the largest that a profile may say (software_fields.h)

std::vector<double> issue_of(const std::vector<ProfileRow>& rows, IssuePoint::Step step) {
  std::vector<double> times_us;
  for (const auto& [point, row] : rows_of<IssuePoint>(rows)) {
    if (point->step == step) times_us.push_back(row->time.median_us);
  }
  return times_us;
}

class Software {
 public:
  Software(const std::string& name, const ProfileMachine& machine) : machine_(machine) {
    result_.software = sim::find_software("cprun");
    result_.software.name = name;
  }

  void set(const char* field, double sim::SoftwareProfile::*member, const std::vector<double>& values,
           double most, const char* of) {
    if (values.empty()) return;
    const Summary summary = summary_of(values);
    result_.software.*member = std::clamp(summary.median, 0.0, most);
    for (sim::Source& known : result_.software.sources) {
      if (known.field == field)
        known.provenance = {sim::Origin::measured,
                            str(source_of(machine_), ": ", of, ", ", to_text(summary))};
    }
    result_.measured.emplace_back(field);
  }

  // Sets max_ctas; nothing where the library's own choice is as good as any.
  void set(const ChannelChoice& choice) {
    if (choice.channels == 0) return;
    result_.software.max_ctas = choice.channels;
    std::vector<std::string> totals;
    for (const auto& [channels, total_us] : choice.total_us) {
      totals.push_back(fmt::format("{:.4g} us with {}", total_us,
                                   channels == 0 ? "as many as NCCL chooses" : str(channels)));
    }
    std::vector<sim::Source>& sources = result_.software.sources;
    std::erase_if(sources, [](const sim::Source& known) { return known.field == "max_ctas"; });
    sources.push_back(
        {"max_ctas",
         {sim::Origin::measured,
          str(source_of(machine_), ": least total of attention and transfers beside each other, ",
              choice.pairs, " pairs: ", join(totals, ", "))}});
    result_.measured.emplace_back("max_ctas");
  }

  std::optional<MeasuredSoftware> result(const std::string& comments) {
    if (result_.measured.empty()) return std::nullopt;
    std::sort(result_.measured.begin(), result_.measured.end());
    result_.text = with_comments(sim::write_software(result_.software),
                                 str(cli::comments_of(machine_), comments,
                                     "# Figures that were not measured are those of the preset cprun.\n"));
    return std::move(result_);
  }

 private:
  const ProfileMachine& machine_;
  MeasuredSoftware result_;
};

}  // namespace

std::optional<MeasuredSoftware> measured_software(const std::string& name,
                                                  const std::vector<ProfileRow>& rows,
                                                  const ProfileMachine& machine) {
  using sim::SoftwareProfile;
  Software software(name, machine);
  std::map<int, KeptSpeeds> kept;
  if (!machine.world.shared_gpu) kept = kept_by_channels(rows);
  ChannelChoice choice;
  if (!machine.world.shared_gpu) choice = choose_channels(rows);
  software.set(choice);
  const KeptSpeeds& chosen = kept[choice.channels];
  const char* beside = "share of its speed beside a collective";
  software.set("forward_progress", &SoftwareProfile::forward_progress, chosen.attention_forward, 1, beside);
  software.set("backward_progress", &SoftwareProfile::backward_progress, chosen.attention_backward, 1,
               beside);
  software.set("merge_passes", &SoftwareProfile::merge_passes, passes_of(rows, MemoryPoint::Kernel::merge),
               100, "a merge over a copy of as many bytes");
  software.set("pack_passes", &SoftwareProfile::pack_passes, passes_of(rows, MemoryPoint::Kernel::pack), 100,
               "a pack over a copy of as many bytes");
  const auto issue = [&](const char* field, double SoftwareProfile::*member, IssuePoint::Step step) {
    software.set(field, member, issue_of(rows, step), kMostIssueUs,
                 "the host's time to issue a small one, in us");
  };
  issue("kernel_issue_us", &SoftwareProfile::kernel_issue_us, IssuePoint::Step::kernel);
  issue("collective_issue_us", &SoftwareProfile::collective_issue_us, IssuePoint::Step::collective);
  issue("transfer_issue_us", &SoftwareProfile::transfer_issue_us, IssuePoint::Step::transfer);
  return software.result(comments_of(kept));
}

}  // namespace cp::cli
