"""What a run will take before anything is bought: memory, disk, traffic, time and money, as plain arithmetic."""
