#include "traces/trace_files.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <string_view>
#include <system_error>
#include <utility>

#include "shared/base/error.h"

namespace cp {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "rank-", kSuffix = ".cptrace";

// The rank of "rank-3.cptrace".
std::optional<Rank> rank_in_name(const std::string& name) {
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return std::nullopt;
  const std::string digits =
      name.substr(kPrefix.size(), name.size() - std::min(name.size(), kPrefix.size() + kSuffix.size()));
  const bool number = !digits.empty() && digits.size() < 10 &&
                      std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (!number) return std::nullopt;
  return static_cast<Rank>(std::stoi(digits));
}

// Adds the ranks of one file; remembers which one holds each.
void add_ranks(TraceFile& all, TraceFile file, const std::string& path,
               std::map<Rank, std::string>& holders) {
  for (RankTrace& trace : file.ranks) {
    const auto [holder, is_new] = holders.emplace(trace.rank, path);
    if (!is_new)
      throw BadTrace(str(path, " holds rank ", trace.rank, ", which ", holder->second, " holds too"));
    all.ranks.push_back(std::move(trace));
  }
  if (!file.truncation) return;
  all.truncation = all.truncation ? str(*all.truncation, "; ", *file.truncation) : *file.truncation;
}

TraceFile read_all(const std::vector<std::string>& paths) {
  TraceFile all;
  std::map<Rank, std::string> holders;
  for (const std::string& path : paths) add_ranks(all, read_trace_file(path), path, holders);
  return all;
}

std::ofstream opened(const std::string& path) {
  std::ofstream out(path, std::ios::binary);
  if (!out) throw BadTrace(str("cannot write ", path, ": ", std::strerror(errno)));
  return out;
}

}  // namespace

std::string rank_trace_path(const std::string& folder, Rank rank) {
  return (fs::path(folder) / str(kPrefix, rank, kSuffix)).string();
}

std::vector<std::string> trace_files_of(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return {path};
  std::map<Rank, std::string> files;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
    const std::string file = entry->path().string();
    const std::optional<Rank> rank = rank_in_name(entry->path().filename().string());
    if (!rank) continue;
    const auto [known, is_new] = files.emplace(*rank, file);
    if (!is_new)
      throw BadTrace(
          str(known->second, " and ", file, " are both traces of rank ", *rank, "; keep one of them"));
  }
  if (error) throw BadTrace(str("cannot read the folder ", path, ": ", error.message()));
  if (files.empty()) {
    throw BadTrace(str("the folder ", path, " holds no trace; it needs one file for each rank, for example ",
                       rank_trace_path(path, 0)));
  }
  std::vector<std::string> paths;
  for (const auto& [rank, file] : files) paths.push_back(file);
  return paths;
}

TraceFile read_trace_path(const std::string& path) { return read_all(trace_files_of(path)); }

void merge_trace_files(const std::vector<std::string>& paths, const std::string& out) {
  for (const std::string& path : paths) {
    std::error_code error;
    if (fs::equivalent(path, out, error))
      throw InvalidInput(
          str(out, " would overwrite one of the traces that it is made from; choose another name"));
  }
  if (const TraceFile all = read_all(paths); all.truncation) throw BadTrace(*all.truncation);
  std::ofstream stream = opened(out);
  try {
    RecordWriter merged(stream);
    for (const std::string& path : paths) {
      std::ifstream in(path, std::ios::binary);
      RecordReader records(in, path);
      while (const std::optional<Record> record = records.next()) merged.write(record->kind, record->payload);
    }
    merged.finish();
  } catch (...) {
    stream.close();
    std::error_code ignored;
    if (fs::is_regular_file(out, ignored)) fs::remove(out, ignored);
    throw;
  }
}

TraceFileWriter::TraceFileWriter(std::string path)
    : path_(std::move(path)), out_(opened(path_)), records_(out_) {
  if (!out_.flush()) throw BadTrace(str("cannot write ", path_, ": ", std::strerror(errno)));
}

void TraceFileWriter::append(const RankTrace& part) {
  write_rank(records_, part);
  if (!out_.flush()) throw BadTrace(str("cannot write ", path_, "; is the disk full?"));
}

void TraceFileWriter::finish() { records_.finish(); }

}  // namespace cp
