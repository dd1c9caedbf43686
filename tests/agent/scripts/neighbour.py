VALUE = "found beside the script"
