#include "cli/cprun/profile/profile_machine.h"

#include <fmt/format.h>

#include "shared/base/text.h"

namespace cp::cli {

std::string source_of(const ProfileMachine& machine) {
  return str("cprun profile, ", machine.gpu, ", ", machine.date);
}

std::string comments_of(const ProfileMachine& machine) {
  std::string text = str("# ", machine.gpu, ", measured by cprun profile on ", machine.date, ": ",
                         machine.world.ranks, machine.world.ranks == 1 ? " rank" : " ranks", " on ",
                         machine.world.machines, machine.world.machines == 1 ? " machine" : " machines",
                         machine.world.shared_gpu ? ", which share GPUs" : "", ".\n");
  for (const auto& [library, version] : machine.libraries) text += str("#   ", library, " ", version, "\n");
  if (machine.sustained_clock_mhz > 0) {
    text +=
        fmt::format("#   SM clock {:.0f} MHz and {:.0f} W after {:.0f} s of products; at most {:.0f} MHz\n",
                    machine.sustained_clock_mhz, machine.power_w, machine.seconds, machine.max_clock_mhz);
  } else {
    text += "#   clocks unknown: NVML was not found\n";
  }
  return text;
}

// The comments about the format itself stay first.
std::string with_comments(const std::string& text, const std::string& comments) {
  const std::size_t at = text.find("\nname:") + 1;
  return text.substr(0, at) + comments + "\n" + text.substr(at);
}

}  // namespace cp::cli
