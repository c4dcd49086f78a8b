// Reads and removes folders by system calls alone, so that a forked child of a process with threads may call
// these functions.
#pragma once

namespace cp::runtime {

// Calls visit(context, folder, name) for each entry except . and .., until it returns false. `folder` is a
// descriptor of the folder. Returns whether the folder could be read.
using VisitEntry = bool (*)(void* context, int folder, const char* name);
bool each_entry(const char* path, VisitEntry visit, void* context) noexcept;

template <class F>
bool each_entry(const char* path, F f) noexcept {
  return each_entry(
      path,
      [](void* context, int folder, const char* name) { return (*static_cast<F*>(context))(folder, name); },
      &f);
}

// Removes a folder that has nothing but files. Returns whether it is gone.
bool remove_flat_folder(const char* path) noexcept;

}  // namespace cp::runtime
