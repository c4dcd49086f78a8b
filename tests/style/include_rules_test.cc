// Keeps the picture of the folders true: reads every source of the project and checks what it includes.
//
//   shared <- traces <- {sim, runtime} <- {cli, tests, benchmarks}
//   within sim:   base <- {fabric <- proof, cost <- planner} <- {scenario, accuracy} <- {present, fuzz}
//   within cli:   common <- {cpsim, cprun}
//
// sim and runtime do not include each other, and traces includes neither: both may read what people write as
// protobuf text, whose errors by line and column exist once, there. shared includes the standard library,
// Eigen and fmt alone, and nothing for threads; headers of CUDA, NCCL and Gloo appear under runtime/ alone,
// and in what holds the GPU's code against them: its tests (tests/gpu), the emulation that these run on
// (tests/emulated_gpu) and its benchmark; includes of the project's own headers are in quotes and start at
// the repository root.

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Source {
  std::string path;  // from the repository root
  std::string text;
};

struct Include {
  int line;
  bool quoted;
  std::string target;  // as written between the delimiters; empty for an include of a macro
};

// Which rooms each room may include.
const std::map<std::string, std::set<std::string>> kAllowedRooms = {
    {"shared", {"shared"}},
    {"traces", {"shared", "traces"}},
    {"sim", {"shared", "traces", "sim"}},
    {"runtime", {"shared", "traces", "runtime"}},
    {"cli", {"shared", "traces", "sim", "runtime", "cli"}},
    {"tests", {"shared", "traces", "sim", "runtime", "cli", "tests"}},
    {"benchmarks", {"shared", "traces", "sim", "runtime", "benchmarks"}},
};

// Within sim, where the rooms are folders. What a plan costs and whether it is right know nothing of each
// other; the planner stands on costs, and fuzz and present on everything below them.
const std::map<std::string, std::set<std::string>> kAllowedInSim = {
    {"base", {}},
    {"fabric", {"base"}},
    {"cost", {"base"}},
    {"proof", {"base", "fabric"}},
    {"planner", {"base", "cost"}},
    {"scenario", {"base", "fabric", "cost", "proof", "planner"}},
    {"accuracy", {"base", "cost", "planner"}},
    {"present", {"base", "fabric", "cost", "proof", "planner", "scenario"}},
    {"fuzz", {"base", "fabric", "cost", "proof", "planner", "scenario"}},
};

// The two front ends share cli/common and nothing else.
const std::map<std::string, std::set<std::string>> kAllowedInCli = {
    {"common", {}},
    {"cpsim", {"common"}},
    {"cprun", {"common"}},
};

// The C++20 library without what starts, stops or joins threads, and the C library in its C++ form.
const std::set<std::string> kStandardForShared = {
    "algorithm",
    "any",
    "array",
    "atomic",
    "bit",
    "bitset",
    "cassert",
    "cctype",
    "cerrno",
    "cfenv",
    "cfloat",
    "charconv",
    "chrono",
    "cinttypes",
    "climits",
    "clocale",
    "cmath",
    "compare",
    "complex",
    "concepts",
    "coroutine",
    "csignal",
    "cstdarg",
    "cstddef",
    "cstdint",
    "cstdio",
    "cstdlib",
    "cstring",
    "ctime",
    "cwchar",
    "cwctype",
    "deque",
    "exception",
    "execution",
    "filesystem",
    "forward_list",
    "format",
    "fstream",
    "functional",
    "initializer_list",
    "iomanip",
    "ios",
    "iosfwd",
    "iostream",
    "istream",
    "iterator",
    "limits",
    "list",
    "locale",
    "map",
    "memory",
    "memory_resource",
    "new",
    "numbers",
    "numeric",
    "optional",
    "ostream",
    "queue",
    "random",
    "ranges",
    "ratio",
    "regex",
    "scoped_allocator",
    "set",
    "source_location",
    "span",
    "sstream",
    "stack",
    "stdexcept",
    "streambuf",
    "string",
    "string_view",
    "system_error",
    "tuple",
    "type_traits",
    "typeindex",
    "typeinfo",
    "unordered_map",
    "unordered_set",
    "utility",
    "valarray",
    "variant",
    "vector",
    "version",
};

bool is_device_header(const std::string& target) {
  static const std::regex pattern(
      R"((gloo|cuda|cub|thrust|cute|cutlass|nvtx3|cooperative_groups)/.*|(nccl|cuda|cublas|cudnn|curand|cusparse|nvrtc|nvml|nvToolsExt|device_launch_parameters|cooperative_groups|mma)[A-Za-z0-9_]*(\.h|\.hpp|\.cuh)?)");
  return std::regex_match(target, pattern);
}

// <immintrin.h> is the compiler's own: kernels use it where the language has no word for a processor's
// instruction.
bool is_library_for_shared(const std::string& target) {
  return target == "immintrin.h" || target.starts_with("Eigen/") ||
         target.starts_with("unsupported/Eigen/") || target.starts_with("fmt/");
}

std::string room_of(const std::string& path) { return path.substr(0, path.find('/')); }

// "cost" of "sim/cost/network/topology.h"; the file's own name where it lies in no folder of its room.
std::string inner_room_of(const std::string& path) {
  const std::size_t start = path.find('/') + 1;
  return path.substr(start, path.find('/', start) - start);
}

// Why a file of the room may not include another one of it; empty if it may.
std::string inner_breach(const std::string& path, const std::string& target) {
  const std::string room = room_of(path);
  if (room != room_of(target) || (room != "sim" && room != "cli")) return "";
  const auto& allowed = room == "sim" ? kAllowedInSim : kAllowedInCli;
  const std::string from = inner_room_of(path), to = inner_room_of(target);
  if (from == to) return "";
  const auto found = allowed.find(from);
  if (found == allowed.end()) return room + "/" + from + " is no room of " + room;
  return found->second.contains(to) ? "" : room + "/" + from + " may not include " + room + "/" + to;
}

// Blanks comments and keeps newlines; leaves literals as they are, so that a quoted "//" starts no comment.
std::string without_comments(std::string_view text) {
  enum class State { code, line_comment, block_comment, string, character };
  State state = State::code;
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const char next = i + 1 < text.size() ? text[i + 1] : '\0';
    const bool in_comment = state == State::line_comment || state == State::block_comment;
    if (c == '\n') {
      // No literal outlives its line, so that a stray quote in a raw string cannot hide what follows.
      if (state != State::block_comment) state = State::code;
      out += c;
    } else if (state == State::code && c == '/' && (next == '/' || next == '*')) {
      state = next == '/' ? State::line_comment : State::block_comment;
      out += "  ";
      ++i;
    } else if (state == State::block_comment && c == '*' && next == '/') {
      state = State::code;
      out += "  ";
      ++i;
    } else if (in_comment) {
      out += ' ';
    } else if ((state == State::string || state == State::character) && c == '\\' && next != '\n') {
      out += c;
      out += next;
      ++i;
    } else {
      if (c == '"' && state != State::character) {
        state = state == State::string ? State::code : State::string;
      } else if (c == '\'' && state == State::character) {
        state = State::code;
      } else if (c == '\'' && state == State::code &&
                 (out.empty() || !std::isalnum(static_cast<unsigned char>(out.back())))) {
        state = State::character;  // not the separator of 1'000
      }
      out += c;
    }
  }
  return out;
}

std::vector<Include> includes_of(const std::string& text) {
  static const std::regex directive(
      R"re(^\s*#\s*(include|include_next|import)\b\s*(?:"([^"]*)"|<([^>]*)>)?.*$)re");
  std::vector<Include> includes;
  std::istringstream lines(without_comments(text));
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    std::smatch match;
    if (line.find('#') == std::string::npos || !std::regex_match(line, match, directive)) continue;
    includes.push_back({number, match[2].matched, match[2].matched ? match[2].str() : match[3].str()});
  }
  return includes;
}

bool may_include_devices(const std::string& path) {
  return path.starts_with("runtime/") || path.starts_with("tests/gpu/") ||
         path.starts_with("tests/emulated_gpu/") || path.starts_with("benchmarks/gpu/");
}

// Why `include` may not be in the file `path`; empty if it may.
std::string breach(const std::string& path, const Include& include) {
  const std::string room = room_of(path);
  const std::string& target = include.target;
  if (target.empty()) return "an include of a macro cannot be checked";
  if (is_device_header(target) && !may_include_devices(path))
    return "headers of CUDA, NCCL and Gloo belong under runtime/ alone";

  const std::string target_room = room_of(target);
  const bool own = target.find('/') != std::string::npos && kAllowedRooms.contains(target_room);
  if (include.quoted != own) {
    return own ? "the project's headers are included in quotes"
               : "quotes are for the project's headers, named from the repository root";
  }
  if (target.find("..") != std::string::npos) return "includes are named from the repository root";
  if (own && !kAllowedRooms.at(room).contains(target_room)) return room + " may not include " + target_room;
  if (const std::string inner = inner_breach(path, target); own && !inner.empty()) return inner;
  if (room == "shared" && !own && !is_library_for_shared(target) && !kStandardForShared.contains(target)) {
    return "shared may include the standard library without threads, Eigen and fmt alone";
  }
  return "";
}

// One line for each breach: "path:line: target: why".
std::vector<std::string> breaches(const std::vector<Source>& sources) {
  std::vector<std::string> found;
  for (const Source& source : sources) {
    for (const Include& include : includes_of(source.text)) {
      const std::string why = breach(source.path, include);
      if (why.empty()) continue;
      found.push_back(source.path + ":" + std::to_string(include.line) + ": " + include.target + ": " + why);
    }
  }
  return found;
}

std::vector<std::string> breaches_of(const std::string& path, const std::string& text) {
  return breaches({{path, text}});
}

std::vector<Source> project_sources() {
  namespace fs = std::filesystem;
  static const std::set<std::string> extensions = {".h", ".hpp", ".cc", ".cpp", ".cu", ".cuh", ".inc"};
  const fs::path root = CP_SOURCE_DIR;
  std::vector<Source> sources;
  for (const auto& [room, allowed] : kAllowedRooms) {
    if (!fs::exists(root / room)) continue;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root / room)) {
      if (!entry.is_regular_file() || !extensions.contains(entry.path().extension().string())) continue;
      std::ifstream file(entry.path(), std::ios::binary);
      std::ostringstream text;
      text << file.rdbuf();
      sources.push_back({fs::relative(entry.path(), root).generic_string(), text.str()});
    }
  }
  std::sort(sources.begin(), sources.end(), [](const Source& a, const Source& b) { return a.path < b.path; });
  return sources;
}

TEST(IncludeRules, HoldForEverySource) {
  const std::vector<Source> sources = project_sources();
  // The scan reached at least this file, and read it.
  const auto self = std::find_if(sources.begin(), sources.end(), [](const Source& s) {
    return s.path == "tests/style/include_rules_test.cc";
  });
  ASSERT_NE(self, sources.end()) << "no sources under " << CP_SOURCE_DIR;
  ASSERT_FALSE(includes_of(self->text).empty());
  EXPECT_THAT(breaches(sources), IsEmpty());
}

TEST(IncludeRules, SharedIncludesNothingOfTheOthers) {
  for (const char* room : {"sim", "runtime", "traces", "cli", "tests", "benchmarks"}) {
    const std::string text = std::string("#include \"") + room + "/x.h\"\n";
    EXPECT_THAT(breaches_of("shared/mesh/mesh.cc", text), ElementsAre(HasSubstr("shared may not include")))
        << room;
  }
  EXPECT_THAT(breaches_of("shared/mesh/mesh.cc", "#include \"shared/mesh/mesh.h\"\n"), IsEmpty());
}

TEST(IncludeRules, WorldsDoNotIncludeEachOtherAndBothMayIncludeTraces) {
  const std::vector<std::string> rooms = {"sim", "runtime", "traces"};
  for (const std::string& from : rooms) {
    for (const std::string& to : rooms) {
      const std::vector<std::string> found =
          breaches_of(from + "/fabric/a.cc", "#include \"" + to + "/fabric/b.h\"\n");
      EXPECT_EQ(found.empty(), from == to || to == "traces") << from << " -> " << to;
    }
    EXPECT_THAT(breaches_of(from + "/a.cc", "#include \"cli/common/flags.h\"\n"),
                ElementsAre(HasSubstr("may not include cli")));
    EXPECT_THAT(breaches_of("cli/cpsim/main.cc", "#include \"" + from + "/b.h\"\n"), IsEmpty());
    EXPECT_THAT(breaches_of("tests/mesh/a.cc", "#include \"" + from + "/b.h\"\n"), IsEmpty());
    EXPECT_THAT(breaches_of("benchmarks/a.cc", "#include \"" + from + "/b.h\"\n"), IsEmpty());
  }
}

TEST(IncludeRules, RoomsOfSimAndCliKnowWhatStandsBelowThem) {
  EXPECT_THAT(breaches_of("sim/planner/search/a.cc", "#include \"sim/cost/timeline/b.h\"\n"), IsEmpty());
  EXPECT_THAT(breaches_of("sim/cost/timeline/a.cc", "#include \"sim/planner/search/b.h\"\n"),
              ElementsAre(HasSubstr("sim/cost may not include sim/planner")));
  EXPECT_THAT(breaches_of("sim/proof/run/a.cc", "#include \"sim/cost/cluster/b.h\"\n"),
              ElementsAre(HasSubstr("sim/proof may not include sim/cost")));
  EXPECT_THAT(breaches_of("sim/new/a.cc", "#include \"sim/base/b.h\"\n"),
              ElementsAre(HasSubstr("sim/new is no room of sim")));
  EXPECT_THAT(breaches_of("cli/cpsim/plan/a.cc", "#include \"cli/cprun/launch.h\"\n"),
              ElementsAre(HasSubstr("cli/cpsim may not include cli/cprun")));
}

TEST(IncludeRules, SharedKnowsNoThreadsSocketsOrProtobuf) {
  for (const char* target : {"thread", "mutex", "shared_mutex", "condition_variable", "future", "semaphore",
                             "latch", "barrier", "stop_token", "sys/socket.h", "pthread.h", "unistd.h",
                             "boost/asio.hpp", "google/protobuf/message.h", "CLI/CLI.hpp", "gtest/gtest.h"}) {
    const std::string text = std::string("#include <") + target + ">\n";
    EXPECT_EQ(breaches_of("shared/plan/plan.h", text).size(), 1U) << target;
    EXPECT_THAT(breaches_of("runtime/rendezvous.h", text), IsEmpty()) << target;
  }
  for (const char* target : {"vector", "cstdint", "span", "Eigen/Core", "fmt/format.h"}) {
    EXPECT_THAT(breaches_of("shared/plan/plan.h", std::string("#include <") + target + ">\n"), IsEmpty())
        << target;
  }
}

TEST(IncludeRules, DeviceHeadersStayUnderRuntime) {
  for (const char* target : {"cuda.h", "cuda_runtime.h", "cuda_bf16.h", "cuda/std/span", "cub/cub.cuh",
                             "nccl.h", "cublas_v2.h", "cooperative_groups.h", "gloo/context.h"}) {
    const std::string text = std::string("#include <") + target + ">\n";
    for (const char* room : {"shared", "sim", "traces", "cli", "tests", "benchmarks"}) {
      EXPECT_THAT(breaches_of(std::string(room) + "/a.cc", text),
                  ElementsAre(HasSubstr("under runtime/ alone")))
          << room << " " << target;
    }
    for (const char* path : {"runtime/nccl/device.cu", "tests/gpu/a.cc", "tests/emulated_gpu/a.cc"})
      EXPECT_THAT(breaches_of(path, text), IsEmpty()) << target;
  }
}

TEST(IncludeRules, OwnHeadersAreQuotedAndNamedFromTheRoot) {
  EXPECT_EQ(breaches_of("shared/mesh/mesh.cc", "#include \"mesh.h\"\n").size(), 1U);
  EXPECT_EQ(breaches_of("shared/mesh/mesh.cc", "#include \"../mesh/mesh.h\"\n").size(), 1U);
  EXPECT_EQ(breaches_of("shared/mesh/mesh.cc", "#include \"shared/../sim/x.h\"\n").size(), 1U);
  EXPECT_EQ(breaches_of("shared/mesh/mesh.cc", "#include <shared/mesh/mesh.h>\n").size(), 1U);
  EXPECT_EQ(breaches_of("sim/a.cc", "#include HEADER\n").size(), 1U);
}

// ---- names ----

// Types that headers define, by namespace and name: where. Two of one name would share their templates'
// instances without a word from the compiler: a std::vector of the one would allocate for the other.
std::map<std::string, std::set<std::string>> types_of_headers(const std::vector<Source>& sources) {
  static const std::regex type(R"((?:struct|class) (\w+)(?: final)?(?: *:[^:].*)? \{)"),
      space(R"(namespace ([\w:]+) \{)");
  std::map<std::string, std::set<std::string>> found;
  for (const Source& source : sources) {
    if (!source.path.ends_with(".h")) continue;
    std::istringstream in(source.text);
    std::string line, inside;
    std::smatch match;
    while (std::getline(in, line)) {
      if (std::regex_match(line, match, space)) inside = match[1];
      if (std::regex_match(line, match, type)) found[inside + "::" + match[1].str()].insert(source.path);
    }
  }
  return found;
}

TEST(NameRules, NoTwoHeadersDefineATypeOfOneName) {
  std::vector<Source> sources = project_sources();
  std::erase_if(sources, [](const Source& source) {
    return source.path.starts_with("tests/") ||
           source.path.starts_with("benchmarks/");  // programs of their own
  });
  for (const auto& [name, paths] : types_of_headers(sources))
    EXPECT_EQ(paths.size(), 1U) << name << ": " << *paths.begin() << ", " << *paths.rbegin();
}

TEST(NameRules, FindTypesOutsideOfOthersAlone) {
  const auto found = types_of_headers(
      {{"sim/a.h", "namespace cp::sim {\nstruct A {\n  struct B {\n  };\n};\nclass C : public A {\n};\n"},
       {"sim/b.h", "namespace cp::sim {\nstruct A {\n};\n"},
       {"sim/b.cc", "namespace cp::sim {\nstruct A {\n};\n"}});
  EXPECT_EQ(found.at("cp::sim::A").size(), 2U);
  EXPECT_EQ(found.at("cp::sim::C").size(), 1U);
  EXPECT_EQ(found.size(), 2U);
}

// ---- counterexamples ----

// The bodies of properties that draw without saying what: "path:line".
std::vector<std::string> unnamed_draws(const Source& source) {
  std::vector<std::string> found;
  std::istringstream in(source.text);
  std::string line;
  bool in_property = false;
  for (int number = 1; std::getline(in, line); ++number) {
    if (line.starts_with("RC_GTEST_PROP(")) in_property = true;
    if (line.starts_with("}")) in_property = false;
    if (in_property && line.find("*rc::gen::") != std::string::npos)
      found.push_back(source.path + ":" + std::to_string(number));
  }
  return found;
}

// Values without names, and types without text forms, make counterexamples that nobody can read: use pick()
// or pick_case() of tests/support/any_case.h.
TEST(CounterexampleRules, PropertiesNameWhatTheyDraw) {
  std::vector<std::string> found;
  for (const Source& source : project_sources()) {
    for (std::string& each : unnamed_draws(source)) found.push_back(std::move(each));
  }
  EXPECT_THAT(found, IsEmpty());
}

TEST(CounterexampleRules, FindDrawsInPropertiesAlone) {
  const std::string text =
      "int draw() {\n  return *rc::gen::inRange(0, 2);\n}\nRC_GTEST_PROP(A, B, ()) {\n"
      "  const int named = pick(\"named\", rc::gen::inRange(0, 2));\n"
      "  const int unnamed = *rc::gen::inRange(0, 2);\n}\n";
  EXPECT_THAT(unnamed_draws({"tests/a.cc", text}), ElementsAre("tests/a.cc:6"));
}

TEST(IncludeRules, FindDirectivesAsThePreprocessorDoes) {
  EXPECT_THAT(
      breaches_of("shared/a.h", "#pragma once\n\n  #  include  <thread>  // why\n"),
      ElementsAre("shared/a.h:3: thread: shared may include the standard library without threads, Eigen and "
                  "fmt alone"));
  EXPECT_EQ(breaches_of("shared/a.h", "int n = 1'000;\n#include <mutex>\n").size(), 1U);
  EXPECT_EQ(breaches_of("shared/a.h", "auto s = \"/*\";\n#include <mutex>\n").size(), 1U);
  EXPECT_EQ(breaches_of("shared/a.h", "/* \" */ #include <mutex>\n").size(), 1U);
  EXPECT_THAT(breaches_of("shared/a.h", "// #include <thread>\n/*\n#include <thread>\n*/\n"), IsEmpty());
  EXPECT_THAT(breaches_of("shared/a.h", "auto s = \"#include <thread>\";\n"), IsEmpty());
}

}  // namespace
