// The codec tables that lie beside the blocks of a cache folder, in <folder>/tables. A model's
// first blocks are stored raw and remembered; when they are enough, its tables are learned from
// them, written, and used from then on, by later processes too. Tables are small and never removed:
// pieces name theirs. Thread-safe; reads of files hold no lock.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "codec/kv_codec.h"
#include "store/block_label.h"
#include "store/coded_model.h"
#include "store/tiers/file_system.h"
#include "store/tiers/write_queue.h"

namespace droidspeak {

class TableFolder {
 public:
  TableFolder(FileSystem& files,
              const std::filesystem::path& cache_folder,
              CodedModel model,
              const KvLayout& layout);

  // Those to write these blocks with; none while too little was seen. Used by one thread.
  std::shared_ptr<const CodecTables> for_writing(
      std::span<const std::shared_ptr<PendingWrite>> batch);
  // Those that a piece names; none when they are gone, damaged or of another layout.
  std::shared_ptr<const CodecTables> find(const TablesName& name);

 private:
  struct Remembered {
    PieceLabel label;
    std::vector<std::byte> values;
  };

  std::shared_ptr<const CodecTables> load_for_writing();
  std::shared_ptr<const CodecTables> load(const std::filesystem::path& path);
  void remember(const PendingWrite& write);
  bool has_seen_enough() const;
  std::shared_ptr<const CodecTables> learn();
  Result<void> save(const CodecTables& tables);

  FileSystem& files_;
  const std::filesystem::path cache_folder_;
  const CodedModel model_;
  const KvLayout layout_;

  // The writing thread's.
  bool has_looked_ = false;
  std::shared_ptr<const CodecTables> for_writing_;
  std::vector<Remembered> remembered_;

  Mutex mutex_;
  std::map<TablesName, std::shared_ptr<const CodecTables>> known_ GUARDED_BY(mutex_);
};

// Where tables lie.
std::filesystem::path tables_folder(const std::filesystem::path& cache_folder);

}  // namespace droidspeak
