"""Plans of runs before anything is bought: memory, disk, traffic, time and money, as plain arithmetic."""
