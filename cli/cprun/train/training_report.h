// Tells people how a training goes: lines on standard output, a line on the terminal that shows the latest
// step, JSON lines and a page with curves.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>

#include "sim/present/training/training_page.h"
#include "sim/scenario/training_run.h"

namespace cp::cli {

struct ReportOptions {
  std::string log;        // file of JSON lines, or empty; lines are added to what it has
  std::string page;       // HTML file, or empty
  bool terminal = false;  // also shows the latest step on the terminal that the process belongs to
};

class TrainingReport {
 public:
  // Throws InvalidInput if a file cannot be written.
  TrainingReport(const sim::TrainJob& job, ReportOptions options);
  ~TrainingReport();
  TrainingReport(const TrainingReport&) = delete;
  TrainingReport& operator=(const TrainingReport&) = delete;

  void tell(const sim::TrainingEvent& event);

 private:
  using Clock = std::chrono::steady_clock;

  void say(const std::string& line);
  void show(const std::string& line);
  void log(const sim::TrainingEvent& event);
  void draw();
  std::string words_of_step(const sim::TrainingEvent& event) const;

  const sim::TrainJob& job_;
  const ReportOptions options_;
  std::ofstream log_;
  std::FILE* terminal_ = nullptr;
  sim::TrainingCurves curves_;
  Clock::time_point said_, shown_;
};

}  // namespace cp::cli
