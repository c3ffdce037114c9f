// tiny_family FOLDER [--plan-books]: writes the tests' model family there, for test suites in other
// languages; with plan books from its base to both adapters, if they are asked for.
#include <cstdio>
#include <cstring>

#include "device/device.h"
#include "e2e/tiny_plan_book.h"
#include "support/tiny_model.h"

using namespace droidspeak;  // NOLINT(google-build-using-namespace)

namespace {

std::vector<std::string> write_books(const std::filesystem::path& folder) {
  std::unique_ptr<Device> device = make_cpu_device();
  std::unique_ptr<Ops> ops = make_cpu_ops(*device, 1);
  FamilyFile file = read_family_file(write_tiny_family(folder));
  std::vector<std::string> books;
  for (const char* receiver : {"alpha", "beta"}) {
    books.push_back(std::string(receiver) + "-from-base.json");
    write_tiny_plan_book(folder / books.back(), *ops, file, receiver);
  }
  return books;
}

}  // namespace

int main(int argc, char** argv) {
  bool has_books = argc == 3 && std::strcmp(argv[2], "--plan-books") == 0;
  if (argc != 2 && !has_books) {
    std::fputs("usage: tiny_family FOLDER [--plan-books]\n", stderr);
    return 2;
  }
  std::vector<std::string> books;
  if (has_books) books = write_books(argv[1]);
  std::puts(write_tiny_family(argv[1], {}, books).c_str());
  return 0;
}
